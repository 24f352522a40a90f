"""Entries in this process, decoded: bounded by the bytes that they really take, least recently used goes first."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from samewise.core.answer import Answer
from samewise.core.entry import Entry
from samewise.ports import Clock, Found, StoreStatus
from samewise.store.events import OnNotice, ignore
from samewise.store.fences import Fences, fits

OVERHEAD = 510
"""Bytes that an entry takes beside its own key, request and answer: its structs, its place in the order."""
_EVENT = 73
_SCAN = 256
_SHARED = 4096
_NOTHING: dict[str, Any] = {}
_T = TypeVar("_T")


class MemoryStore:
    """A Store whose every call but `scan` is O(1) and never waits. `limit` is in bytes. One event loop only."""

    def __init__(
        self,
        limit: int,
        *,
        clock: Clock,
        max_entry: int = 8 << 20,
        on_notice: OnNotice = ignore,
        name: str = "memory",
        fences: int = 65_536,
    ) -> None:
        self._limit = limit
        self._max_entry = max_entry
        self._clock = clock
        self._on_notice = on_notice
        self._name = name
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._bytes = 0
        self._fences = Fences(fences)
        self._shared: dict[Any, Any] = {}
        self.evictions = 0
        """Entries that had to go before their time, since the start."""

    def peek(self, key: str, now: float) -> Entry | None:
        """The entry, where there is one that is fresh at `now` (seconds since the epoch); counts as a use."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now - entry.created >= entry.ttl:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def keep(self, entry: Entry) -> bool:
        """`put`, without waiting."""
        key = entry.key
        cost = cost_of(entry)
        now = self._clock.now()
        small = cost <= self._max_entry or fits(entry, self._max_entry)
        if not small or cost > self._limit or not entry.fresh(now) or not self._fences.admits(key, entry.began):
            return False
        if key in self._entries:
            self._drop(key)
        self._entries[key] = self._compact(entry)
        self._bytes += cost
        self._make_room(now)
        return True

    def forget(self, key: str, fence: int) -> bool:
        """`discard`, without waiting."""
        self._fences.raise_to(key, fence)
        return self._drop(key)

    async def get(self, key: str) -> Found | None:
        entry = self.peek(key, self._clock.now())
        return None if entry is None else Found(entry, "memory")

    async def put(self, entry: Entry) -> bool:
        return self.keep(entry)

    async def discard(self, key: str, fence: int) -> bool:
        return self.forget(key, fence)

    async def reclaim(self, entries: Sequence[Entry]) -> int:
        """Exact: what replaced one of them stays."""
        mine = [entry.key for entry in entries if (kept := self._entries.get(entry.key)) and kept.began == entry.began]
        return sum(self._drop(key) for key in mine)

    async def revise(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        return self.revised(key, change)

    def revised(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        """`revise`, without waiting."""
        entry = self.peek(key, self._clock.now())
        if entry is None:
            return False
        new = change(entry)
        if new is entry:
            return False
        self._drop(key)
        if new is not None:
            self.keep(new)
        return True

    async def scan(self) -> AsyncIterator[Entry]:
        now = self._clock.now()
        keys = list(self._entries)
        for at in range(0, len(keys), _SCAN):
            for key in keys[at : at + _SCAN]:
                entry = self._entries.get(key)
                if entry is not None and entry.fresh(now):
                    yield entry
            await asyncio.sleep(0)

    def status(self) -> Sequence[StoreStatus]:
        return (StoreStatus(name=self._name, available=True, entries=len(self._entries), bytes=self._bytes),)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def _drop(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._bytes -= cost_of(entry)
        return True

    def _make_room(self, now: float) -> None:
        while self._bytes > self._limit:
            _, entry = self._entries.popitem(last=False)
            self._bytes -= cost_of(entry)
            if entry.fresh(now):
                self.evictions += 1
                self._on_notice("store-eviction", {"tier": self._name})

    def _compact(self, entry: Entry) -> Entry:
        """The same entry, whose repeated parts are one object for all entries."""
        answer = entry.answer
        return msgspec.structs.replace(
            entry,
            tenant=sys.intern(entry.tenant),
            family=sys.intern(entry.family),
            model=sys.intern(entry.model),
            environment=sys.intern(entry.environment),
            snapshot=sys.intern(entry.snapshot),
            ttl=self._share(entry.ttl),
            extra=entry.extra or _NOTHING,
            answer=msgspec.structs.replace(answer, headers=self._share(answer.headers)),
        )

    def _share(self, value: _T) -> _T:
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        shared: _T = self._shared.setdefault(value, value)
        return shared


def cost_of(entry: Entry) -> int:
    """Bytes of memory that the entry takes, near enough: measured against tracemalloc in a test."""
    answer: Answer = entry.answer
    events = _EVENT * len(answer.events)
    extra = len(msgspec.msgpack.encode(entry.extra)) * 4 if entry.extra else 0
    tags = sum(60 + len(tag) for tag in entry.tags)
    return OVERHEAD + len(entry.key) + len(entry.request) + answer.size() + events + extra + tags
