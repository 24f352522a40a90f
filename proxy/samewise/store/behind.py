"""Write-behind: an answer never waits for its own copy to be stored, and a slow store never fills memory."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import cast

from samewise.core.entry import Entry
from samewise.ports import StoreUnavailable
from samewise.store.memory import cost_of

_log = logging.getLogger("samewise.store")


class WriteBehind:
    """A bounded queue in front of `write`. What waits can be read; the last entry of a key wins,
    and two of one key are never on their way at once.

    Each entry is written once, whatever comes of it: there are no retries. `offer` says False where
    `entries` or `limit` (bytes) are reached. Runs on one event loop.
    """

    def __init__(
        self,
        write: Callable[[Entry], Awaitable[bool]],
        *,
        entries: int = 4096,
        limit: int = 64 << 20,
        writers: int = 4,
    ) -> None:
        self._write = write
        self._entries = entries
        self._limit = limit
        self._most = writers
        self._waiting: OrderedDict[str, Entry] = OrderedDict()
        self._writing: dict[str, Entry] = {}
        self._busy: set[str] = set()
        self._bytes = 0
        self._watched: dict[str, asyncio.Future[None]] = {}
        self._writers: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def offer(self, entry: Entry) -> bool:
        """Take it to be written soon."""
        cost = cost_of(entry)
        if entry.key not in self._waiting and len(self) >= self._entries:
            return False
        if self._bytes + cost > self._limit:
            return False
        self.withdraw(entry.key)
        self._waiting[entry.key] = entry
        self._bytes += cost
        if len(self._writers) < min(self._most, len(self._waiting)):
            self._writers.add(asyncio.get_running_loop().create_task(self._drain()))
        return True

    def peek(self, key: str) -> Entry | None:
        """What waits to be written under this key, or is being written."""
        return self._waiting.get(key) or self._writing.get(key)

    def withdraw(self, key: str) -> bool:
        """Don't write it after all; what is being written already can't be held back, but is seen no more."""
        seen = self._writing.pop(key, None) is not None
        entry = self._waiting.pop(key, None)
        if entry is None:
            return seen
        self._bytes -= cost_of(entry)
        self._tell(key)
        return True

    async def written(self, key: str) -> None:
        """Return when nothing of this key waits."""
        while key in self._waiting or key in self._busy:
            watched = self._watched.setdefault(key, asyncio.get_running_loop().create_future())
            await asyncio.shield(watched)

    async def flush(self) -> None:
        """Return when nothing waits."""
        while self._writers:
            await asyncio.wait(set(self._writers))

    async def _drain(self) -> None:
        """Write until nothing is left. Who finds nothing is a writer no more, at once: what comes then has its own."""
        try:
            while (key := next((key for key in self._waiting if key not in self._busy), None)) is not None:
                await self._put(key)
        finally:
            self._writers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _put(self, key: str) -> None:
        entry = self._waiting.pop(key)
        self._writing[key] = entry
        self._busy.add(key)
        try:
            await self._write(entry)
        except StoreUnavailable:
            pass
        except Exception:
            _log.exception("an entry could not be written")
        finally:
            self._bytes -= cost_of(entry)
            self._busy.discard(key)
            if self._writing.get(key) is entry:
                del self._writing[key]
            self._tell(key)

    def _tell(self, key: str) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None:
            watched.set_result(None)
