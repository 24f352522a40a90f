"""A server that stops leaves nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

import pytest
from aiohttp import web

from samewise.http import server
from samewise.http.hot import HotAnswers
from tests.support.patience import ENOUGH


async def refuse(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nothing was asked")


class Line(asyncio.Transport):
    """A connection that remembers what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = b""

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)


async def test_who_connected_at_the_moment_of_the_stop_is_let_go() -> None:
    protocols = server.make_server(refuse)
    protocol, line = protocols(), Line()
    protocol.connection_made(line)
    protocols.pre_shutdown()
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.closed


async def test_who_connected_and_asked_nothing_is_let_go() -> None:
    protocols = server.make_server(refuse)
    protocol, line = protocols(), Line()
    protocol.connection_made(line)
    await asyncio.sleep(0)
    protocols.pre_shutdown()
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.closed


class Expecting:
    """Knows every head, and no answer."""

    def by_request(self, data: bytes) -> None: ...

    def by_fields(self, data: bytes) -> None: ...

    def is_head(self, data: bytes) -> bool:
        return data.endswith(b"\r\n\r\n")


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=await request.read())


@pytest.mark.parametrize("held", [False, True])
async def test_a_request_that_is_under_way_is_read_to_its_end_and_answered(held: bool) -> None:
    hot = cast("HotAnswers", Expecting()) if held else None
    protocols = server.make_server(echo, hot)
    protocol, line = protocols(), Line()
    protocol.connection_made(line)
    await asyncio.sleep(0)
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\n")
    protocols.pre_shutdown()
    ending = asyncio.create_task(protocols.shutdown(ENOUGH))
    await asyncio.sleep(0)
    for piece in (b"bo", b"dy", b"ok"):
        protocol.data_received(piece)
    async with asyncio.timeout(ENOUGH / 2):
        await ending
    assert line.written.startswith(b"HTTP/1.1 200 ") and line.written.endswith(b"\r\n\r\nbodyok")
    assert line.closed
