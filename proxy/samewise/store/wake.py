"""Telling those who wait that there may be news, and finding out by looking now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from samewise.ports import StoreUnavailable

POLL = 0.25
"""Seconds between two looks."""
TOLD = 0.75
"""Seconds between two looks of who is told of news: words can get lost."""


class Wake:
    """Wakes everyone who waits, once for any number of calls; one that comes later waits for the next."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()
        self._closed = False

    def wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def close(self) -> None:
        """Ends every `listen`."""
        self._closed = True
        self.wake()

    async def listen(self) -> AsyncIterator[None]:
        """Yields at once, then after each `wake`."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            while not self._closed:
                yield
                await waiter.wait()
                waiter.clear()
        finally:
            self._waiters.discard(waiter)


class Watch:
    """A wake that also looks: `look` tells a number, and whoever listens is woken when it is another one.

    It begins with the first listener. A store that can't be asked is asked again at the next look. While it is
    `told` of news by other ways it looks less often.
    """

    def __init__(self, look: Callable[[], Awaitable[int]], told: Callable[[], bool] = lambda: False) -> None:
        self._look = look
        self._told = told
        self._wake = Wake()
        self._task: asyncio.Task[None] | None = None
        self._seen = 0

    def wake(self) -> None:
        """There is news, without a look."""
        self._wake.wake()

    async def listen(self) -> AsyncIterator[None]:
        """Yields at once, then whenever there may be news."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())
        async for _ in self._wake.listen():
            yield

    def close(self) -> None:
        """Look no more, and end every `listen`."""
        if self._task is not None:
            self._task.cancel()
        self._wake.close()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(TOLD if self._told() else POLL)
            try:
                number = await self._look()
            except StoreUnavailable:
                continue
            if number != self._seen:
                self._seen = number
                self._wake.wake()
