"""Signs of life on a stream that has nothing to say for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

COMMENT = b": keep-alive\n"
"""A comment line (WHATWG HTML section 9.2.6). No empty line follows it: some clients take that for an event."""


class Pings:
    """Writes COMMENT after each `interval` seconds in which nothing else `spoke`. An interval of 0 writes none.

    It falls between two events, since each event is written as a whole.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    def spoke(self) -> None:
        """Something is written now."""
        self._last = self._loop.time()

    @contextlib.asynccontextmanager
    async def on(self, request: web.BaseRequest, response: web.StreamResponse) -> AsyncIterator[None]:
        """For as long as the block lasts."""
        if not self._interval:
            yield
            return
        task = asyncio.create_task(self._keep(request, response))
        try:
            yield
        finally:
            task.cancel()

    async def _keep(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                left = self._last + self._interval - self._loop.time()
                if left > 0:
                    await asyncio.sleep(left)
                    continue
                self.spoke()
                if not request.protocol.writing_paused:
                    await response.write(COMMENT)
