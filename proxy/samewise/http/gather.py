"""What is said within one turn of the event loop is written as one: a write is what a relayed event costs most."""

from __future__ import annotations

import asyncio

from aiohttp import web

LIMIT = 64 * 1024
"""Bytes that are gathered at most."""


class Gathering:
    """Writes the pieces of a response that is prepared, in chunks where it is chunked. The first goes out at once.

    Nothing waits longer than until the loop turns. `flush` before the response's own `write` or `write_eof`.
    """

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._waiting: list[bytes] = []
        self._size = 0

    async def write(self, data: bytes) -> None:
        """Take it; returns when there is room for more. Raises ConnectionError where the client is gone."""
        if not self._begun:
            self._begun = True
            await self._response.write(data)
            return
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= LIMIT:
            self.flush()
        if self._request.transport is None:
            raise ConnectionResetError("the client is gone")
        if self._request.protocol.writing_paused:
            await self._request.protocol._drain_helper()

    def flush(self) -> None:
        """Write what waits now, as one chunk (RFC 9112 section 7.1) where there are chunks."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._response.chunked else data)
