"""Clients that take nothing of their answer are let go: they would hold memory, and perhaps an upstream, for ever."""

from __future__ import annotations

import asyncio
import logging

_log = logging.getLogger("samewise.http")


class Outlet:
    """Looks on while a connection is `stuck`, until it is `free`. One that nothing left for `patience` seconds ends.

    A client that reads slowly is no client that does not read: any byte that the system takes counts.
    """

    __slots__ = ("_left", "_loop", "_next", "_patience")

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._patience = patience
        self._left = 0
        self._next: asyncio.TimerHandle | None = None

    def stuck(self, transport: asyncio.WriteTransport) -> None:
        """More waits to be sent than should."""
        self.free()
        self._left = transport.get_write_buffer_size()
        self._next = self._loop.call_later(self._patience, self._look, transport)

    def free(self) -> None:
        """It was sent, or the connection is over."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self, transport: asyncio.WriteTransport) -> None:
        if transport.get_write_buffer_size() < self._left:
            self.stuck(transport)
            return
        self._next = None
        _log.info("let go of a client that took nothing of its answer for %g s", self._patience)
        transport.abort()
