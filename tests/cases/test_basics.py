"""Ask once, ask again."""

from __future__ import annotations

import asyncio

from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy


async def test_the_first_time_is_a_miss_and_the_second_the_same_bytes(proxy: Proxy, mb: MockBackend) -> None:
    first, second = await proxy.post(B0), await proxy.post(B0)
    assert (first.cache, second.cache) == ("MISS", "HIT")
    assert first.body == second.body
    assert mb.count == 1
    assert first.headers["cache-status"] == "samewise; fwd=miss; stored"
    assert second.headers["cache-status"].startswith("samewise; hit; ttl=")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_fifty_at_once_ask_the_upstream_once(proxy: Proxy, mb: MockBackend) -> None:
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    asking = [asyncio.create_task(proxy.post(B0)) for _ in range(50)]
    await mb.arrived(1)
    await proxy.waits(50)
    gate.set()
    answers = await asyncio.gather(*asking)
    assert mb.count == 1
    assert len({answer.body for answer in answers}) == 1
    assert sorted(str(answer.cache) for answer in answers) == ["COALESCED"] * 49 + ["MISS"]
