"""How long an upstream may say nothing: one timer for all the reads of an answer, since most of them are short."""

from __future__ import annotations

import asyncio

import aiohttp

from samewise.upstream.options import Timeouts


class Silence:
    """Reads a body. Only waiting counts: a reader that takes its time is no silence of the upstream's.

    `started`: when the request began, by the loop's clock.
    """

    def __init__(self, content: aiohttp.StreamReader, timeouts: Timeouts, started: float) -> None:
        self._content = content
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._last = started + timeouts.total
        self._first: float | None = started + timeouts.connect + timeouts.first_byte
        self._asked: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def read(self) -> bytes:
        """The next bytes, b"" at the end. Raises TimeoutError, which says what took too long, and aiohttp's errors."""
        self._asked = self._loop.time()
        if self._timer is None or self._asked >= self._last:
            self._look()
        data = await self._content.readany()
        self._asked = None
        if self._first is not None:
            self._first = None
            self.end()
        return data

    def end(self) -> None:
        """No more is read, or what is read next has another limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        due = now + self._timeouts.idle
        if self._asked is not None:
            due = min(self._first or self._asked + self._timeouts.idle, self._last)
        if due <= now:
            self._content.set_exception(TimeoutError(self._told(due)))
        else:
            self.end()
            self._timer = self._loop.call_at(due, self._look)

    def _told(self, due: float) -> str:
        if due == self._last:
            return f"the upstream's answer took longer than {self._timeouts.total:g} s"
        limit = self._timeouts.idle if self._first is None else self._timeouts.first_byte
        return f"the upstream sent nothing for {limit:g} s"
