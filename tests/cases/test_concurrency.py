"""Many ask at once: what is shared, what never is, and who may leave."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import Body, fresh, new_text, without
from tests.support.mock_backend import DONE, MockBackend, Script, sse
from tests.support.patience import ENOUGH
from tests.support.proxy import CHAT, Answered, Proxy, until
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]


def asking(proxy: Proxy, body: Body, times: int = 1, **headers: str) -> list[asyncio.Task[Answered]]:
    return [asyncio.create_task(proxy.post(body, headers=headers)) for _ in range(times)]


async def leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def outcomes(answers: list[Answered]) -> dict[str | None, int]:
    return dict(Counter(answer.cache for answer in answers))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_caller_may_leave(pair: Pair, stream: bool) -> None:
    gate = asyncio.Event()
    body = fresh(stream=stream)
    pair.mb.always(Script(gate=gate))
    [leader] = asking(pair.proxy, body)
    await pair.mb.arrived(1)
    others = asking(pair.proxy, body, 4)
    await pair.proxy.waits(5)
    await leave(leader)
    await pair.proxy.waits(4)
    gate.set()
    answers = await asyncio.gather(*others)
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.body for answer in answers}) == 1
    assert pair.mb.count == 1
    assert (await pair.proxy.post(body)).cache == "HIT"


async def test_a_caller_that_joined_leaves_alone_and_before_the_answer(pair: Pair) -> None:
    gate = asyncio.Event()
    body = fresh()
    pair.mb.always(Script(gate=gate))
    [leader] = asking(pair.proxy, body)
    await pair.mb.arrived(1)
    stays, leaves = asking(pair.proxy, body, 2)
    await pair.proxy.waits(3)
    await leave(leaves)
    await pair.proxy.waits(2)
    gate.set()
    answers = await asyncio.gather(leader, stays)
    assert outcomes(list(answers)) == {"MISS": 1, "COALESCED": 1}
    assert pair.mb.count == 1
    await pair.proxy.waits(0)


@pytest.mark.parametrize("stream", [False, True])
async def test_fifty_at_once_ask_once_and_again_when_the_answer_has_expired(pair: Pair, stream: bool) -> None:
    body = fresh(stream=stream)
    for round_ in (1, 2):
        gate = asyncio.Event()
        pair.mb.rules.clear()
        pair.mb.always(Script(gate=gate))
        tasks = asking(pair.proxy, body, 50, **{"x-samewise-ttl": "1"})
        await pair.proxy.waits(50)
        opened = asyncio.get_running_loop().time()
        gate.set()
        answers = await asyncio.gather(*tasks)
        assert outcomes(list(answers)) == {"MISS": 1, "COALESCED": 49}
        assert len({answer.body for answer in answers}) == 1
        assert len({answer.headers["x-request-id"] for answer in answers}) == 50
        assert pair.mb.count == round_

        async def expired() -> bool:
            return (await pair.proxy.post(body, headers={"Cache-Control": "only-if-cached"})).status == 504

        if round_ == 1:
            assert not await expired() or asyncio.get_running_loop().time() - opened > 1
            await until(expired)


async def test_two_proxies_on_one_redis_ask_at_most_once_each(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    proxies = [await make_proxy(settings={"store.url": redis_server.url}) for _ in range(2)]
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    body = fresh()
    tasks = [task for proxy in proxies for task in asking(proxy, body, 25)]
    for proxy in proxies:
        await proxy.waits(25)
    gate.set()
    answers = await asyncio.gather(*tasks)
    assert mb.count <= 2
    assert [answer.status for answer in answers] == [200] * 50
    assert len({answer.body for answer in answers}) <= mb.count


async def test_slow_answers_are_waited_for_however_late_callers_come(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    body = fresh()
    tasks: list[asyncio.Task[Answered]] = []
    for _ in range(15):
        tasks += asking(pair.proxy, body)
        await asyncio.sleep(0.1)
    gate.set()
    answers = await asyncio.gather(*tasks)
    assert (pair.mb.count, len({answer.text for answer in answers})) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "headers"),
    [({"temperature": 1, "seed": None}, {}), ({}, {"Cache-Control": "no-store"}), ({"cache": {"no-store": True}}, {})],
    ids=["unseeded", "no-store", "no-store-in-the-body"],
)
async def test_what_is_not_cached_is_neither_shared_nor_queued(
    pair: Pair, changes: Body, headers: dict[str, str]
) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    tasks = asking(pair.proxy, fresh(**changes), 8, **headers)
    async with asyncio.timeout(ENOUGH):
        await pair.mb.arrived(8)
    gate.set()
    answers = await asyncio.gather(*tasks)
    assert pair.mb.peak == 8
    assert len({answer.text for answer in answers}) == 8
    assert outcomes(list(answers)) == {"BYPASS": 8}


@pytest.mark.parametrize("megabytes", [4, 20], ids=["kept", "too-large-to-keep"])
async def test_slow_readers_get_everything_and_hold_up_nobody(pair: Pair, megabytes: int) -> None:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    count = megabytes * 16
    pieces = [
        sse({**base, "choices": [{"index": 0, "delta": {"content": f"{at}" + "x" * 65536}, "finish_reason": None}]})
        for at in range(count)
    ]
    pieces += [sse({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), DONE]
    gate = asyncio.Event()
    body = fresh()
    pair.mb.always(Script(sse=pieces, gate=gate))

    async def reading(pause: float, every: int, first: float = 0.0) -> tuple[str, int]:
        digest, got = hashlib.sha256(), 0
        async with pair.proxy.stream(body) as streaming:
            await asyncio.sleep(first)
            async for data in streaming.data():
                digest.update(data.encode())
                got += 1
                if got % every == 0:
                    await asyncio.sleep(pause)
        return digest.hexdigest(), got

    tasks = [
        asyncio.create_task(reading(0, 1000)),
        asyncio.create_task(reading(0.02, 8)),
        asyncio.create_task(reading(0, 1000, first=1.0)),
    ]
    await pair.proxy.waits(3)
    gate.set()
    async with asyncio.timeout(2 * ENOUGH):
        done = await asyncio.gather(*tasks)
    expected = hashlib.sha256(b"".join(piece[6:].strip() for piece in pieces)).hexdigest()
    assert done == [(expected, count + 2)] * 3


async def test_those_who_ask_in_other_forms_each_get_their_own(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    body = fresh()
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    plain, streamed, with_usage, alone = [
        asyncio.create_task(pair.proxy.post({**body, **change}, headers=headers))
        for change, headers in (
            ({}, {}),
            ({"stream": True}, {}),
            (usage, {}),
            ({}, {"Cache-Control": "no-store"}),
        )
    ]
    await pair.proxy.waits(4)
    gate.set()
    assert (await plain).json()["object"] == "chat.completion"
    assert all("usage" not in each or '"usage":null' in each for each in (await streamed).data())
    assert '"completion_tokens":18' in (await with_usage).data()[-2].replace(" ", "")
    assert (await plain).text == (await streamed).text == (await with_usage).text
    assert ((await alone).cache, (await alone).text == (await plain).text) == ("BYPASS", False)


async def test_embeddings_of_both_encodings_at_once_are_told_apart(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    body = {"model": "m", "input": new_text()}
    tasks = [
        asyncio.create_task(pair.proxy.post({**body, "encoding_format": each}, path="/v1/embeddings"))
        for each in ("float", "base64")
    ]
    await pair.mb.arrived(2)
    gate.set()
    floats, coded = await asyncio.gather(*tasks)
    assert isinstance(floats.json()["data"][0]["embedding"], list)
    assert isinstance(coded.json()["data"][0]["embedding"], str)


async def test_tenants_never_share_a_fetch(make_proxy: MakeProxy, mb: MockBackend) -> None:
    keys = [{"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("a", "b")]
    proxy = await make_proxy(settings={"auth.keys": keys})
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    body = fresh()
    tasks = [asking(proxy, body, 2, Authorization=f"Bearer {name}") for name in ("a", "b")]
    await proxy.waits(4)
    gate.set()
    answers = [await asyncio.gather(*each) for each in tasks]
    assert mb.count == 2
    assert [{answer.text for answer in each} for each in answers] == [{answers[0][0].text}, {answers[1][0].text}]
    assert answers[0][0].text != answers[1][0].text
    assert answers[0][0].key != answers[1][0].key


async def test_every_answer_is_to_its_own_question_whoever_leaves(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    proxies = [await make_proxy(settings={"store.url": redis_server.url, "store.timeout": ENOUGH}) for _ in range(2)]
    mb.text = lambda body, number: f"<<{body['messages'][0]['content']}>> {number}"
    chance = random.Random(14)
    mb.rules.insert(0, lambda _: Script(delay=chance.uniform(0, 0.05)))
    completed: dict[str, tuple[Proxy, Body]] = {}

    async def ask(body: Body, patience: float | None) -> None:
        proxy, text = chance.choice(proxies), body["messages"][0]["content"]
        try:
            async with asyncio.timeout(patience):
                answer = await proxy.post({**body, "stream": chance.random() < 0.5})
        except TimeoutError:
            return
        assert answer.status == 200
        assert answer.text.startswith(f"<<{text}>> ")
        completed[text] = proxy, body

    bodies: list[Body] = []
    for _ in range(3):
        bodies += [fresh() for _ in range(150)]
        asked = [chance.choice(bodies) for _ in range(100)] + bodies[-150:]
        await asyncio.gather(*(ask(body, chance.uniform(0, 0.2) if chance.random() < 0.3 else None) for body in asked))
    assert len(completed) > 300
    mb.forget()
    hits = await asyncio.gather(*(proxy.post(body) for proxy, body in completed.values()))
    for text, answer in zip(completed, hits, strict=True):
        assert answer.text.startswith(f"<<{text}>> ")
    assert outcomes(list(hits)) == {"HIT": len(completed)}
    others = await asyncio.gather(*(proxies[proxy is proxies[0]].post(body) for proxy, body in completed.values()))
    for text, answer in zip(completed, others, strict=True):
        assert answer.text.startswith(f"<<{text}>> ")


async def test_a_retry_after_an_impatient_client_is_no_second_call(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    body = fresh()
    for _ in range(3):
        [impatient] = asking(pair.proxy, body)
        await pair.proxy.waits(1)
        await pair.mb.arrived(1)
        await leave(impatient)
        await pair.proxy.waits(0)
    assert pair.mb.count == 1
    gate.set()

    async def hit() -> bool:
        return (await pair.proxy.post(body)).cache == "HIT"

    await until(hit)
    assert pair.mb.count == 1


async def test_callers_that_all_leave_what_is_not_shared_stop_the_upstream(pair: Pair) -> None:
    pair.mb.always(Script(gate=asyncio.Event()))
    [task] = asking(pair.proxy, without(fresh(temperature=1), "seed"))
    await pair.mb.arrived(1)
    await leave(task)

    async def stopped() -> bool:
        return pair.mb.running == 0

    await until(stopped)


async def test_an_error_is_shared_by_those_who_waited_and_by_nobody_later(pair: Pair) -> None:
    gate = asyncio.Event()
    body = fresh()
    pair.mb.once(Script(status=429, gate=gate, headers={"Retry-After": "3"}))
    tasks = asking(pair.proxy, body, 5)
    await pair.proxy.waits(5)
    gate.set()
    answers = await asyncio.gather(*tasks)
    assert {(answer.status, answer.cache) for answer in answers if answer.status != 200} == {(429, "ERROR")}
    assert (await pair.proxy.post(body)).status == 200


async def test_a_stream_that_breaks_breaks_for_all_who_share_it(pair: Pair) -> None:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    piece = sse({**base, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]})
    gate = asyncio.Event()
    body = fresh(stream=True)
    pair.mb.once(Script(sse=[piece], end="reset", gate=gate))
    tasks = asking(pair.proxy, body, 3)
    await pair.proxy.waits(3)
    gate.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        assert isinstance(each, aiohttp.ClientError) or "[DONE]" not in each.data()  # type: ignore[union-attr]
    assert (await pair.proxy.post(body, path=CHAT)).cache == "MISS"
