"""Clients that stop reading hold neither memory nor an upstream for ever, and cost nobody else anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.bodies import fresh
from tests.support.chunks import text_stream
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import Proxy, until

PATIENCE = 2.0
"""Seconds, so many that a busy machine is no stalled reader."""
LARGE = 6 << 20


@contextmanager
def stalled(proxy: Proxy, body: dict[str, Any], **fields: str) -> Iterator[socket.socket]:
    """Somebody who asks, and reads nothing, on a connection that holds little."""
    raw = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(proxy.address)
        link.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        yield link


def connections(proxy: Proxy) -> int:
    """Sockets that the proxy has open, and does not listen on."""
    links = [link for link in Path(f"/proc/{proxy.pid}/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


@pytest.mark.parametrize("control", [{}, {"Cache-Control": "no-store"}])
async def test_an_upstream_is_not_held_by_somebody_who_reads_nothing_of_its_stream(
    make_proxy: MakeProxy, mb: MockBackend, control: dict[str, str]
) -> None:
    proxy = await make_proxy(settings={"server.patience": PATIENCE})
    mb.once(Script(sse=text_stream(*["x" * 65536] * 640)))
    with stalled(proxy, fresh(stream=True), **control):
        await mb.arrived(1)

        async def over() -> bool:
            return mb.running == 0 and await proxy.metric("samewise_inflight") == 0

        await until(over)
        assert any("took nothing of its answer" in line for line in proxy.log)
    assert (await proxy.post(fresh())).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_hit_is_not_kept_for_somebody_who_does_not_read_it(
    make_proxy: MakeProxy, mb: MockBackend, stream: bool
) -> None:
    proxy = await make_proxy(settings={"server.patience": PATIENCE})
    mb.always(Script(text=lambda body, number: "x" * LARGE))
    body = fresh(stream=stream)
    for cache in ("MISS", "HIT", "HIT"):
        assert (await proxy.post(body)).cache == cache
    assert await proxy.metric("samewise_inflight") == 0
    before = connections(proxy)
    links = [stalled(proxy, body) for _ in range(10)]
    for link in links:
        link.__enter__()

    async def counted() -> bool:
        return await proxy.metric("samewise_requests_total", outcome="hit") >= 12

    async def gone() -> bool:
        return connections(proxy) <= before and await proxy.metric("samewise_inflight") == 0

    try:
        await until(counted)
        await until(gone)
    finally:
        for link in links:
            link.__exit__(None, None, None)
    whole = await proxy.post(body)
    assert whole.cache == "HIT" and len(whole.text) == LARGE


async def test_somebody_who_stops_reading_holds_up_no_other_reader_of_the_same_fetch(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy(settings={"server.patience": PATIENCE})
    gate = asyncio.Event()
    text = ["y" * 65536] * 80
    mb.once(Script(gate=gate, sse=text_stream(*text)))
    body = fresh(stream=True)
    with stalled(proxy, body):
        await mb.arrived(1)
        reading = asyncio.create_task(proxy.post(body))
        await proxy.waits(2)
        gate.set()
        answer = await reading
    assert (answer.cache, answer.text == "".join(text)) == ("COALESCED", True)
    assert mb.count == 1
