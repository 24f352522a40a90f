"""A client that is refused while it still sends gets to read why."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from samewise.http import server

FLOOD = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(20_000))
"""Twenty megabytes: more than a connection's buffers hold."""


async def never(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("this was refused before anybody could be asked")


@pytest.fixture
async def served() -> AsyncIterator[tuple[web.Server, tuple[str, int]]]:
    protocols = server.make_server(never)
    listening = await server.listen(protocols, server.bind("127.0.0.1", 0))
    yield protocols, listening.sockets[0].getsockname()
    listening.close()
    await protocols.shutdown(5)


def told(address: tuple[str, int], asked: bytes) -> bytes:
    """Everything that is answered by a client that sends all of it before it reads anything."""
    with socket.create_connection(address, timeout=60) as line:
        line.sendall(asked)
        heard = b""
        while more := line.recv(1 << 16):
            heard += more
        return heard


async def test_who_sends_on_after_a_refusal_still_reads_it(served: tuple[web.Server, tuple[str, int]]) -> None:
    heard = await asyncio.to_thread(told, served[1], FLOOD)
    assert heard.startswith(b"HTTP/1.0 431 ")
    assert heard.count(b"HTTP/1.") == 1


async def test_a_server_that_stops_waits_for_none_of_them(
    served: tuple[web.Server, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER", 600.0)
    protocols, address = served
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GARBAGE\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.0 400 ")
    protocols.pre_shutdown()
    async with asyncio.timeout(60):
        await protocols.shutdown(600)
    writer.close()
