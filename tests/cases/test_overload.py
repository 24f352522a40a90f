"""More requests than can be held, and clients that wait to be asked for their body."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import pytest

from samewise.http import capacity
from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import fresh
from tests.support.mock_backend import MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import CHAT, Proxy, until
from tests.support.wire import Wire, request


async def files(proxy: Proxy) -> int:
    return len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
async def test_what_is_too_much_is_refused_at_once_and_everything_else_is_answered(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy(settings={"server.max_requests": 100})
    known = fresh()
    await proxy.post(known)
    before = await files(proxy)
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    running = [asyncio.create_task(proxy.post(fresh(stream=True))) for _ in range(100)]
    await mb.arrived(101)
    refused = await asyncio.gather(*(proxy.post(fresh(stream=number % 2 == 0)) for number in range(50)))
    for answer in refused:
        assert (answer.status, answer.reason, answer.cache) == (503, "too-busy", "ERROR")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.headers["cache-status"] == "samewise; detail=too-busy"
    for path in ("/healthz", "/readyz"):
        assert (await proxy.request("GET", path)).status == 200
    assert mb.count == 101, "none of this waited for those that run: the gate is closed"
    gate.set()
    answers = await asyncio.gather(*running)
    assert {(answer.status, answer.data()[-1]) for answer in answers} == {(200, "[DONE]")}
    assert (await proxy.post(fresh())).cache == "MISS"
    assert (await proxy.post(known)).cache == "HIT"
    await proxy.session.close()

    async def released() -> bool:
        return await files(proxy) <= before + 110  # connections to the backend are kept for some seconds

    await until(released)


@pytest.mark.slow
async def test_fifteen_hundred_streams_at_once_leave_nothing_behind(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy()
    before = await files(proxy)
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    running = [asyncio.create_task(proxy.post(fresh(stream=True))) for _ in range(1500)]
    async with asyncio.timeout(2 * ENOUGH):
        await mb.arrived(1500)
    assert (await proxy.request("GET", "/healthz")).status == 200
    gate.set()
    answers = await asyncio.gather(*running)
    assert {(answer.status, answer.data()[-1]) for answer in answers} == {(200, "[DONE]")}
    await proxy.session.close()

    async def released() -> bool:
        return await files(proxy) <= before + 10

    await until(released)


def test_no_more_requests_are_held_than_files_can_be_opened() -> None:
    assert capacity.requests(10_000, 4096) == 1920
    assert capacity.requests(100, 4096) == 100
    assert capacity.requests(10_000, 64) == 1
    assert capacity.requests(10_000, resource.RLIM_INFINITY) == 10_000


@pytest.mark.parametrize("path", [CHAT, "/echo"])
async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(pair: Pair, path: str) -> None:
    body = json.dumps(fresh()).encode()
    head, _, _ = request(body, "Expect: 100-continue", path=path).partition(b"\r\n\r\n")
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(head + b"\r\n\r\n")
        assert (await wire.answer()).status == 100
        await wire.send(body)
        heard = await wire.answer()
    assert heard.status == 200
    assert heard.body == body if path == "/echo" else heard.header("x-samewise-cache") == "MISS"


async def test_a_client_that_may_not_send_its_body_is_told_without_it(pair: Pair) -> None:
    sent = request(b"", "Expect: 100-continue", f"Content-Length: {1 << 30}", length=False)
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(sent)
        heard = await wire.answer()
    assert heard.status == 413
    assert heard.header("connection") == "close"
    assert pair.mb.count == 0
