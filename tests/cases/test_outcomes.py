"""What a proxy tells of each request: the word in its head, and figures that add up."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import Body, fresh, without
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import Answered, Proxy, until

STATUS = {
    "MISS": r"samewise; fwd=(uri-)?miss(; stored)?",
    "HIT": r"samewise; hit; ttl=\d+",
    "COALESCED": r"samewise; fwd=(uri-)?miss; .*collapsed.*",
    "BYPASS": r"samewise; fwd=bypass; .*detail=(unseeded|no-store)",
    "REFRESH": r"samewise; fwd=request(; stored)?",
    "ERROR": r"samewise; fwd=(uri-)?miss.*",
}


def says(answer: Answered, outcome: str) -> None:
    """The word, the standard's header and an id of its own, all of them right."""
    assert answer.cache == outcome
    assert re.fullmatch(STATUS[outcome], answer.headers["cache-status"]), answer.headers["cache-status"]
    assert ("age" in answer.headers) == (outcome == "HIT")
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_outcome_is_told_in_the_head_of_streams_too(pair: Pair, stream: bool) -> None:
    body = fresh(stream=stream)
    gate = asyncio.Event()
    pair.mb.once(Script(gate=gate))
    tasks = [asyncio.create_task(pair.proxy.post(body)) for _ in range(2)]
    await pair.proxy.waits(2)
    gate.set()
    miss, joined = sorted(await asyncio.gather(*tasks), key=lambda answer: str(answer.cache), reverse=True)
    says(miss, "MISS")
    assert ("stored" in miss.headers["cache-status"]) == (not stream), "the head of a stream comes before its end"
    says(joined, "COALESCED")
    says(await pair.proxy.post(body), "HIT")
    says(await pair.proxy.post(body, headers={"Cache-Control": "no-store"}), "BYPASS")
    says(await pair.proxy.post(body, headers={"Cache-Control": "no-cache"}), "REFRESH")
    says(await pair.proxy.post(without({**body, "temperature": 1}, "seed")), "BYPASS")
    pair.mb.once(Script(status=500))
    says(await pair.proxy.post(fresh(stream=stream)), "ERROR")
    for answer in (miss, joined):
        assert re.fullmatch(r"[0-9a-f]{64}", str(answer.key))
        assert answer.headers["x-samewise-environment"] == "a" * 32
        assert re.fullmatch(r"default@\d+", answer.headers["x-samewise-snapshot"])


async def test_tokens_made_and_tokens_saved_add_up_and_clients_see_what_was_recorded(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy()
    body, usage = fresh(), {"stream": True, "stream_options": {"include_usage": True}}
    forms: list[Body] = [{}, {}, {}, {**usage}, {"stream": True}]
    answers = [await proxy.post({**body, **form}) for form in forms]
    assert [answer.cache for answer in answers] == ["MISS"] + ["HIT"] * 4
    told = answers[0].json()["usage"]
    assert [answer.json()["usage"] for answer in answers[1:3]] == [told, told]
    assert f'"usage":{answers[0].body.decode().split("usage")[1][2:]}'.replace(" ", "")[:60] in "".join(
        answers[3].data()
    ).replace(" ", "")

    async def counted() -> bool:
        made = await proxy.metric("samewise_tokens_total", kind="generated")
        saved = await proxy.metric("samewise_tokens_total", kind="saved")
        return (made, saved) == (18, 72)

    await until(counted)
    assert mb.count == 1


async def test_outcomes_add_up_to_requests(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy()
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    shared, known = fresh(), fresh()
    tasks = [asyncio.create_task(proxy.post(shared)) for _ in range(8)]
    await proxy.waits(8)
    gate.set()
    answers = list(await asyncio.gather(*tasks))
    answers += [await proxy.post(known) for _ in range(4)]
    answers += [await proxy.post(known, headers={"Cache-Control": "no-store"}) for _ in range(2)]
    answers.append(await proxy.post(known, headers={"Cache-Control": "no-cache"}))
    mb.once(Script(status=503))
    answers.append(await proxy.post(fresh()))
    answers.append(await proxy.post(b"{"))
    expected = {"hit": 3, "miss": 2, "coalesced": 7, "bypass": 2, "refresh": 1, "error": 2}

    async def counted() -> dict[str, float]:
        return {
            outcome: await proxy.metric("samewise_requests_total", outcome=outcome, endpoint="chat")
            for outcome in expected
        }

    async def adds_up() -> bool:
        return await counted() == expected

    await until(adds_up)
    assert sum(expected.values()) == len(answers)
    in_heads = [str(answer.cache).lower() for answer in answers]
    assert {outcome: in_heads.count(outcome) for outcome in expected} == expected
    assert await proxy.metric("samewise_requests_total", endpoint="chat") == len(answers)
    assert await proxy.metric("samewise_inflight") == 0


async def test_readiness_follows_the_backend_and_life_does_not(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy()
    port = mb.port

    async def ready(status: int) -> None:
        async def so() -> bool:
            return (await proxy.request("GET", "/readyz")).status == status

        await until(so)

    await ready(200)
    await mb.stop()
    await ready(503)
    body = (await proxy.request("GET", "/readyz")).json()
    assert any(str(port) in each for each in body["degraded"])
    assert (await proxy.request("GET", "/healthz")).status == 200
    await mb.start(port)
    await ready(200)
    assert mb.count == 0


async def recompute(proxy: Proxy, body: Body) -> Answered:
    return await proxy.post(body, headers={"Cache-Control": "no-cache"})


async def test_a_recomputation_is_its_own_however_many_ask_the_same(pair: Pair) -> None:
    body = fresh()
    shared, alone = asyncio.Event(), asyncio.Event()
    gates = [shared, alone]
    pair.mb.rules.insert(0, lambda _: Script(gate=gates.pop(0)) if gates else None)
    users = [asyncio.create_task(pair.proxy.post(body)) for _ in range(20)]
    await pair.mb.arrived(1)
    await pair.proxy.waits(20)
    refreshing = asyncio.create_task(recompute(pair.proxy, body))
    await pair.mb.arrived(2)
    alone.set()
    refreshed = await refreshing
    shared.set()
    answers = await asyncio.gather(*users)
    assert (refreshed.cache, pair.mb.count) == ("REFRESH", 2)
    assert {answer.text for answer in answers} == {answers[0].text}
    assert answers[0].text != refreshed.text
    last = await pair.proxy.post(body)
    assert last.cache == "HIT"


async def test_a_recomputation_becomes_the_entry(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    refreshed = await recompute(pair.proxy, body)
    assert (refreshed.cache, refreshed.text == first.text) == ("REFRESH", False)
    last = await pair.proxy.post(body)
    assert (last.cache, last.text, pair.mb.count) == ("HIT", refreshed.text, 2)


async def test_a_recomputation_that_fails_leaves_the_entry(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    pair.mb.once(Script(status=500))
    assert (await recompute(pair.proxy, body)).cache == "ERROR"
    again = await pair.proxy.post(body)
    assert (again.cache, again.body) == ("HIT", first.body)


CONTROLS: list[tuple[dict[str, str], Body]] = [
    ({"Cache-Control": "no-store"}, {}),
    ({}, {"cache": {"no-store": True}}),
]


@pytest.mark.parametrize(("headers", "change"), CONTROLS, ids=["header", "body"])
async def test_no_store_neither_reads_nor_writes(pair: Pair, headers: dict[str, str], change: Body) -> None:
    body = fresh()
    await pair.proxy.post({**body, **change}, headers=headers)
    first = await pair.proxy.post(body)
    assert first.cache == "MISS"
    alone = await pair.proxy.post({**body, **change}, headers=headers)
    assert (alone.cache, alone.reason, alone.text == first.text) == ("BYPASS", "no-store", False)
    assert (await pair.proxy.post(body)).text == first.text
    assert all("cache" not in received.body for received in pair.mb.received)


async def test_only_if_cached_never_asks_the_upstream(pair: Pair) -> None:
    body = fresh()
    asked = {"Cache-Control": "only-if-cached"}
    refused = await pair.proxy.post(body, headers=asked)
    assert (refused.status, refused.reason, pair.mb.count) == (504, "not-cached", 0)
    assert set(refused.json()["error"]) >= {"message", "type", "param", "code"}
    await pair.proxy.post(body)
    assert ((await pair.proxy.post(body, headers=asked)).cache, pair.mb.count) == ("HIT", 1)


@pytest.mark.parametrize("control", ["header", "body"])
async def test_an_answer_is_kept_as_long_as_its_request_says(pair: Pair, control: str) -> None:
    body = fresh()
    headers = {"x-samewise-ttl": "1"} if control == "header" else {}
    began = asyncio.get_running_loop().time()
    first = await pair.proxy.post(body if headers else {**body, "cache": {"ttl": 1}}, headers=headers)
    assert first.cache == "MISS"

    async def again() -> Answered:
        return await pair.proxy.post(body, headers={"Cache-Control": "only-if-cached"})

    soon = await again()
    if asyncio.get_running_loop().time() - began < 1:
        assert soon.cache == "HIT"
        assert re.search(r"ttl=[01]\b", soon.headers["cache-status"])

    async def gone() -> bool:
        return (await again()).status == 504

    await until(gone)


async def test_an_entry_that_is_too_old_for_a_request_is_asked_for_anew(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    assert (await pair.proxy.post({**body, "cache": {"s-maxage": 600}})).text == first.text
    newer = await pair.proxy.post({**body, "cache": {"s-maxage": 0}})
    assert (newer.cache, newer.reason, newer.text == first.text) == ("MISS", "too-old", False)
    assert (await pair.proxy.post(body)).text == newer.text


async def test_a_namespace_is_a_cache_of_its_own(pair: Pair) -> None:
    body = fresh()
    answers = [await pair.proxy.post({**body, "cache": {"namespace": name}}) for name in ("a", "b", "a")]
    answers.append(await pair.proxy.post(body))
    assert [answer.cache for answer in answers] == ["MISS", "MISS", "HIT", "MISS"]
