"""Several processes serve as one: one port, one view, one upstream call; and one that dies is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.mock_backend import MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, Proxy, until
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]

MakeProxy = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def mb() -> AsyncIterator[MockBackend]:
    async with MockBackend() as backend:
        yield backend


@pytest.fixture
async def make(tmp_path: Path, mb: MockBackend) -> AsyncIterator[MakeProxy]:
    started: list[Proxy] = []

    async def one(workers: int = 3, **settings: Any) -> Proxy:
        made = Proxy(tmp_path / f"p{len(started)}", mb.url, settings={"server.workers": workers, **settings})
        started.append(made)
        await made.start()
        del ASKED[made.url], HITS[made.url]
        return made

    yield one
    for proxy in started:
        await proxy.stop()


ASKED: Counter[str] = Counter()
"""Requests of `fresh`, by the proxy's URL: what a view of all workers must come to, once each has told of its own."""
HITS: Counter[str] = Counter()
"""Those of them that said that they were hits."""


async def fresh(proxy: Proxy, body: Any = B0, **headers: str) -> tuple[str | None, bytes]:
    """Ask on a connection of its own, so that any worker may get it."""
    ASKED[proxy.url] += 1
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        HITS[proxy.url] += response.headers["x-samewise-cache"] == "HIT"
        return response.headers["x-samewise-cache"], await response.read()


async def warm(proxy: Proxy, mb: MockBackend) -> bytes:
    """B0's answer, when all workers can see it."""
    first = await fresh(proxy)

    async def seen() -> bool:
        return all([(await fresh(proxy))[0] == "HIT" for _ in range(8)])

    await until(seen)
    return first[1]


async def closed(proxy: Proxy) -> bool:
    """True where nobody accepts connections any more."""
    host, port = proxy.url.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return True
    writer.close()
    return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def working(proxy: Proxy) -> list[int]:
    return [child for child in children(proxy.pid) if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_what_one_worker_stored_all_of_them_give(make: MakeProxy, mb: MockBackend) -> None:
    proxy = await make()
    first = await warm(proxy, mb)
    answers = [await fresh(proxy) for _ in range(24)]
    assert {answer[0] for answer in answers} == {"HIT"}
    assert {answer[1] for answer in answers} == {first} and mb.count == 1

    async def counted() -> bool:
        return (
            await proxy.metric("samewise_requests_total") == ASKED[proxy.url]
            and await proxy.metric("samewise_requests_total", outcome="hit") == HITS[proxy.url]
        )

    async def told() -> bool:
        status = await proxy.admin("GET", "/status")
        assert status["workers"] == 3
        requests, ratio = status["requests"], round(1 - 1 / ASKED[proxy.url], 6)
        return (requests["hit"], sum(requests.values()), status["hit_ratio"]) == (
            HITS[proxy.url],
            ASKED[proxy.url],
            ratio,
        )

    async def kept() -> bool:
        stored = await proxy.metric("samewise_requests_total", outcome="hit", tier="store")
        assert stored < 3, "each worker keeps in memory what it found in the store"
        return stored > 0

    await until(counted)
    await until(told)
    await until(kept)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_cold_question_at_all_workers_is_asked_once(
    make: MakeProxy, mb: MockBackend, stream: bool
) -> None:
    proxy = await make()
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    asking = [asyncio.create_task(fresh(proxy, {**B0, "stream": stream})) for _ in range(40)]
    await proxy.waits(40)
    gate.set()
    answers = await asyncio.gather(*asking)
    outcomes = Counter(str(answer[0]) for answer in answers)
    assert mb.count == 1
    assert outcomes["MISS"] == 1, "one asked"
    assert outcomes["COALESCED"] + outcomes["HIT"] == 39, "a worker that looks when the answer is there has it as a hit"
    assert len({answer[1] for answer in answers}) == 1


async def test_what_is_not_kept_is_asked_for_by_each_and_nobody_waits_in_line(make: MakeProxy, mb: MockBackend) -> None:
    proxy = await make()
    gate = asyncio.Event()
    mb.always(Script(status=400, gate=gate))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session:

        async def ask() -> int:
            async with session.post(f"{proxy.url}/v1/chat/completions", json=B0) as response:
                return response.status

        asking = [asyncio.create_task(ask()) for _ in range(30)]
        await proxy.waits(30)
        gate.set()
        assert {*await asyncio.gather(*asking)} == {400}
    assert mb.count <= 3


async def test_a_change_holds_in_all_workers_when_it_is_answered(make: MakeProxy, mb: MockBackend) -> None:
    proxy = await make()
    for round_ in range(5):
        before = await warm(proxy, mb)
        for _ in range(12):
            assert (await fresh(proxy))[1] == before
        key = (await proxy.post(B0)).key
        scope = [{"scope": "all"}, {"scope": "key", "value": key}, {"scope": "model", "value": "m"}][round_ % 3]
        await proxy.admin("POST", "/invalidate", scope)
        after = [await fresh(proxy) for _ in range(12)]
        assert all(answer[1] != before for answer in after)
        assert [answer[0] for answer in after].count("MISS") == 1 == len({answer[1] for answer in after})
    await proxy.admin("PUT", "/profiles/default", {"values": {"top_p": 0.25}})
    await asyncio.gather(*(fresh(proxy, {**B0, "seed": 100 + seed}) for seed in range(12)))
    assert mb.received[-1].body["top_p"] == 0.25 and {each.body.get("top_p") for each in mb.received[-12:]} == {0.25}


async def test_what_happens_in_every_worker_is_seen(make: MakeProxy) -> None:
    proxy = await make()
    seen: list[str] = []

    async def listen() -> None:
        url = f"{proxy.admin_url}/samewise/v1/events"
        async with proxy.session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as response:
            async for line in response.content:
                event = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if event.get("event") == "request":
                    seen.append(event["request_id"])

    listening = asyncio.create_task(listen())

    async def heard() -> bool:
        await fresh(proxy)
        return len({name.partition("-")[0] for name in seen}) == 3

    await until(heard)
    listening.cancel()


async def test_the_recent_past_is_that_of_all_workers(make: MakeProxy) -> None:
    proxy = await make()
    asked: list[str] = []

    async def everywhere() -> bool:
        asked.append((await fresh(proxy, {**B0, "seed": len(asked)}))[1].decode())
        told = (await proxy.admin("GET", "/recent?limit=500"))["items"]
        assert [event["at"] for event in told] == sorted((event["at"] for event in told), reverse=True)
        requests = [event["request_id"] for event in told if event["event"] == "request"]
        assert len(requests) == len(set(requests))
        return len(requests) == len(asked) and len({name.partition("-")[0] for name in requests}) == 3

    await until(everywhere)
    assert len((await proxy.admin("GET", "/recent?limit=2"))["items"]) == 2


@pytest.mark.parametrize("victims", [slice(1, 3), slice(0, 1), slice(0, 3)], ids=["two", "the first", "all"])
async def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(
    make: MakeProxy, mb: MockBackend, victims: slice
) -> None:
    proxy = await make()
    first = await warm(proxy, mb)

    async def counted() -> bool:
        return await proxy.metric("samewise_requests_total") == ASKED[proxy.url]

    await until(counted)
    before = working(proxy)
    assert len(before) == 3
    for victim in before[victims]:
        os.kill(victim, signal.SIGKILL)

    async def replaced() -> bool:
        return len(set(working(proxy)) - set(before)) == len(before[victims])

    await until(replaced)
    answers = await asyncio.gather(*(fresh(proxy) for _ in range(30)))
    assert {answer[0] for answer in answers} == {"HIT"} and {answer[1] for answer in answers} == {first}
    assert mb.count == 1
    await until(counted)
    assert any("a worker ended" in line for line in proxy.log)


async def test_a_worker_that_dies_while_it_asks_is_replaced_as_the_one_that_asks(
    make: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make(2)
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    asking = [asyncio.create_task(fresh(proxy)) for _ in range(20)]
    await mb.arrived(1)
    await proxy.waits(20)
    victim = working(proxy)[1]
    os.kill(victim, signal.SIGKILL)
    if mb.gone == 0:
        try:
            async with asyncio.timeout(1.0):
                await mb.arrived(2)
        except TimeoutError:
            gate.set()
    async with asyncio.timeout(ENOUGH):
        done = await asyncio.gather(*asking, return_exceptions=True)
    answered = [each for each in done if not isinstance(each, BaseException)]
    assert answered and len({answer[1] for answer in answered}) == 1 and mb.count <= 2


async def test_a_stop_lets_every_worker_finish(make: MakeProxy, mb: MockBackend) -> None:
    proxy = await make()
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    asking = [asyncio.create_task(fresh(proxy, {**B0, "seed": seed})) for seed in range(12)]
    await mb.arrived(12)
    workers = working(proxy)
    proxy.signal()

    await until(lambda: closed(proxy))
    gate.set()
    assert {answer[0] for answer in await asyncio.gather(*asking)} == {"MISS"}
    assert await proxy.ended() == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


async def test_a_second_signal_ends_it_at_once(make: MakeProxy, mb: MockBackend) -> None:
    proxy = await make(2, **{"server.drain": 10 * ENOUGH})
    mb.always(Script(gate=asyncio.Event()))
    asking = asyncio.create_task(fresh(proxy))
    await mb.arrived(1)
    proxy.signal()

    await until(lambda: closed(proxy))
    proxy.signal(signal.SIGINT)
    async with asyncio.timeout(ENOUGH):
        assert await proxy.ended() == 0
    with pytest.raises(aiohttp.ClientError):
        await asking


async def test_workers_end_with_their_supervisor(make: MakeProxy) -> None:
    proxy = await make(2)
    workers = working(proxy)
    await proxy.kill()

    async def gone() -> bool:
        return not any(Path(f"/proc/{worker}").exists() for worker in workers)

    await until(gone)


async def test_a_setting_that_no_worker_can_use_is_said_once(make: MakeProxy) -> None:
    with pytest.raises(AssertionError, match="ended with 2") as failed:
        await make(2, **{"store.url": "memory://", "store.memory": 0})
    assert str(failed.value).count("[store] memory") == 1


async def test_a_thousand_at_four_workers_and_two_proxies_are_one_upstream_call(
    make: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    several = await make(4, **{"store.url": redis_server.url})
    others = [await make(1, **{"store.url": redis_server.url}) for _ in range(2)]
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    asking: list[asyncio.Task[tuple[str | None, bytes]]] = []

    async def all_wait() -> bool:
        waiting = [await proxy.metric("samewise_waiting") for proxy in (several, *others)]
        return sum(waiting) == len(asking)

    for wave in (1, 9, *[24] * 10):  # so that no process is too busy with newcomers to say that it lives
        asking += [asyncio.create_task(fresh(proxy)) for proxy in (several, several, *others) for _ in range(wave)]
        await until(all_wait)
    gate.set()
    answers = await asyncio.gather(*asking)
    assert len(answers) == 1000
    assert mb.count == 1 and len({answer[1] for answer in answers}) == 1
    kinds = [answer[0] for answer in answers]
    assert kinds.count("MISS") == 1 and set(kinds) <= {"MISS", "COALESCED", "HIT"}
