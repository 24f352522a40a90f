"""A server that stops leaves nobody waiting."""

from __future__ import annotations

import asyncio

from aiohttp import web

from samewise.http import server


async def refuse(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nothing was asked")


class Line(asyncio.Transport):
    """A connection that remembers whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError("there is nothing to say")


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
