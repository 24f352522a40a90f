"""Entries in one SQLite file, which several processes may share: durable, bounded, least recently used goes first.

A put waits in memory for the writing thread's next batch; a get asks the reading thread. A crash
loses at most what waited; nothing is ever half there.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from samewise.core.entry import Entry, EntryRefused
from samewise.ports import Clock, Found, StoreStatus, StoreUnavailable
from samewise.store import segments
from samewise.store import sqlite_rows as rows
from samewise.store.breaker import Breaker
from samewise.store.codec import Codec
from samewise.store.events import OnNotice
from samewise.store.fences import Admission
from samewise.store.memory import cost_of
from samewise.store.sqlite_threads import Job, SqliteThread

PATIENCE = 10.0
"""Seconds that a discard, an event or a record may wait for the writing thread."""
_FLUSH = 60.0
_BUSY = 2.0
_CHUNK = 500
_PAGE = 64
_TOUCHES = 10_000
_TOUCH_EVERY = 5.0


class _Long(NamedTuple):
    """A row whose value is the head of segments."""

    number: int
    value: bytes
    head: segments.Head


class SqliteStore:
    """A Store in a file. Must be made inside a running event loop; `reader` and `writer` may be shared."""

    def __init__(
        self,
        path: Path,
        *,
        codec: Codec,
        clock: Clock,
        on_notice: OnNotice,
        timeout: float = 0.1,
        max_entry: int = 8 << 20,
        max_entries: int = 10_000_000,
        max_bytes: int = 8 << 30,
        segment: int = 0,
        queue: int = 4096,
        queue_bytes: int = 64 << 20,
    ) -> None:
        self._codec = codec
        self._clock = clock
        self._on_notice = on_notice
        self._timeout = timeout
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._segment = segment
        self._queue = queue
        self._queue_bytes = queue_bytes
        self._pending: dict[str, Entry] = {}
        self._waiting = 0
        self._waiting_bytes = 0
        self._admission = Admission(clock, max_entry)
        self._breaker = Breaker(clock)
        self._read_error = ""
        self._write_error = ""
        self._totals: tuple[int, int] | None = None
        self._touched: set[int] = set()
        self._touch_at = 0.0
        self._loop = asyncio.get_running_loop()
        common: dict[str, Any] = {"loop": self._loop, "on_aside": self._aside}
        self.writer = SqliteThread(
            path, writes=True, busy=_BUSY, tick=self._reclaim, on_error=self._write_failed, **common
        )
        self.reader = SqliteThread(path, writes=False, busy=min(timeout, 0.1), on_error=self._read_failed, **common)

    async def ready(self, within: float = 2.0) -> bool:
        """True where the file is open and answers; False where it does not yet, which mends itself."""
        try:
            await self.writer.ask(rows.totals, within=within)
        except StoreUnavailable as error:
            self._write_error = error.kind
            return False
        return True

    async def get(self, key: str) -> Found | None:
        entry = self._pending.get(key)
        if entry is None:
            entry = await self._read(key)
        if entry is None or not entry.fresh(self._clock.now()):
            return None
        return Found(entry, "store")

    async def put(self, entry: Entry) -> bool:
        if not self._admission.admits(entry):
            return False
        cost, now = cost_of(entry), self._clock.now()
        if self._waiting >= self._queue or self._waiting_bytes + cost > self._queue_bytes:
            self._count("queue-full", "put")
            raise StoreUnavailable("queue-full")
        self._pending[entry.key] = entry
        self._waiting += 1
        self._waiting_bytes += cost
        future = self._loop.create_future()
        future.add_done_callback(lambda done: self._written(entry, cost, done))
        self.writer.submit(Job(lambda connection: self._write(connection, entry, now), future, cost))
        return True

    async def discard(self, key: str, fence: int) -> bool:
        self._admission.fences.raise_to(key, fence)
        waited = self._pending.pop(key, None) is not None
        now = self._clock.now()
        gone = await self.writer.ask(lambda connection: rows.discard(connection, key, fence, now), within=PATIENCE)
        return bool(gone) or waited

    async def reclaim(self, entries: Sequence[Entry]) -> int:
        """What waits to be written stays: it is younger."""
        keys = [entry.key for entry in entries if entry.key not in self._pending]
        return int(await self.writer.ask(lambda connection: rows.delete(connection, keys), within=PATIENCE))

    async def revise(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        now = self._clock.now()

        def work(connection: sqlite3.Connection) -> bool:
            row = rows.get(connection, key)
            if row is None:
                return False
            data = rows.whole(connection, *row)
            try:
                entry = None if data is None else self._codec.decode(key, data)
            except EntryRefused:
                return False
            if entry is None:
                return False
            new = change(entry) if entry.fresh(now) else entry
            if new is entry:
                return False
            return rows.delete(connection, [key]) > 0 if new is None else self._write(connection, new, now)

        return bool(await self.writer.ask(work, within=PATIENCE))

    async def scan(self) -> AsyncIterator[Entry]:
        await self.flush()
        after = 0
        while batch := await self.reader.ask(_pages(after), within=PATIENCE):
            for number, key, value in batch:
                after = number
                entry = self._decode(key, value) if value is not None else None
                if entry is not None and entry.fresh(self._clock.now()):
                    yield entry

    def status(self) -> Sequence[StoreStatus]:
        entries, size = self._totals or (None, None)
        error = self._read_error or self._write_error
        return (StoreStatus(name="sqlite", available=not error, detail=error, entries=entries, bytes=size),)

    async def flush(self) -> None:
        if self._waiting:
            await self.writer.ask(lambda connection: None, within=_FLUSH)

    async def close(self) -> None:
        await self.writer.close()
        await self.reader.close()

    async def _read(self, key: str) -> Entry | None:
        if not self._breaker.closed and not self._breaker.due():
            raise StoreUnavailable("circuit-open", f"the store's file is not asked: {self._read_error}")
        try:
            found = await self._found(key)
        except StoreUnavailable as error:
            self._read_error = error.kind
            if error.kind == "timeout":
                self._count("timeout", "get")
            if self._breaker.failure():
                self._on_notice("store-state", {"tier": "store", "state": "down", "error": error.kind})
            raise
        if not self._breaker.closed:
            self._on_notice("store-state", {"tier": "store", "state": "up", "error": ""})
        self._breaker.success()
        self._read_error = ""
        if isinstance(found, EntryRefused):
            self._count(found.kind, "get")
            return None
        return found

    async def _found(self, key: str) -> Entry | EntryRefused | None:
        """A value in segments is read piece by piece, so that others get their turns; once more where it changed."""
        for last in (False, True):
            found: Entry | EntryRefused | _Long | None
            found = await self.reader.ask(self._reading(key), within=self._timeout)
            if not isinstance(found, _Long):
                return found
            data = segments.whole(found.head, await self._parts(found))
            if data is not None:
                return await asyncio.to_thread(self._decoded, key, data)
            if last:
                self.writer.submit(Job(functools.partial(rows.free, key=key, value=found.value)))
        return EntryRefused(segments.MISSING)

    async def _parts(self, found: _Long) -> list[bytes | None]:
        parts: list[bytes | None] = []
        number, token, count = found.number, found.head.token, found.head.parts
        until = time.monotonic() + PATIENCE
        while len(parts) < count and None not in parts:
            left = min(self._timeout, until - time.monotonic())
            parts.append(await self.reader.ask(_part(number, token, len(parts)), within=left))
        return parts

    def _reading(self, key: str) -> Callable[[sqlite3.Connection], Entry | EntryRefused | _Long | None]:
        def read(connection: sqlite3.Connection) -> Entry | EntryRefused | _Long | None:
            row = rows.get(connection, key)
            if row is None:
                return None
            if len(self._touched) < _TOUCHES:
                self._touched.add(row[0])
            head = segments.head(row[1])
            return self._decoded(key, row[1]) if head is None else _Long(*row, head)

        return read

    def _decoded(self, key: str, data: bytes) -> Entry | EntryRefused:
        try:
            return self._codec.decode(key, data)
        except EntryRefused as refused:
            return refused

    def _decode(self, key: str, value: bytes) -> Entry | None:
        try:
            return self._codec.decode(key, value)
        except EntryRefused as refused:
            self._count(refused.kind, "scan")
            return None

    def _write(self, connection: sqlite3.Connection, entry: Entry, now: float) -> bool:
        stored, expires = segments.cut(self._codec.encode(entry), self._segment), entry.created + entry.ttl
        return rows.put(connection, entry.key, stored, expires=expires, began=entry.began, now=now)

    def _written(self, entry: Entry, cost: int, done: asyncio.Future[bool]) -> None:
        self._waiting -= 1
        self._waiting_bytes -= cost
        if self._pending.get(entry.key) is entry:
            del self._pending[entry.key]
        error = done.exception()
        if error is not None:
            self._count(error.kind if isinstance(error, StoreUnavailable) else "error", "put")

    def _reclaim(self, connection: sqlite3.Connection) -> None:
        """Once a second, in the writing thread: what was used, expired entries, those beyond the bounds."""
        now = self._clock.now()
        if time.monotonic() - self._touch_at >= _TOUCH_EVERY and self._touched:
            self._touch_at = time.monotonic()
            touched, self._touched = self._touched, set()
            rows.touch(connection, list(touched), now)
        rows.expire(connection, now, _CHUNK)
        gone = rows.evict(connection, max_entries=self._max_entries, max_bytes=self._max_bytes, limit=_CHUNK)
        self._loop.call_soon_threadsafe(self._reclaimed, rows.totals(connection), gone)

    def _reclaimed(self, totals: tuple[int, int], evicted: int) -> None:
        self._totals = totals
        self._write_error = ""
        for _ in range(evicted):
            self._on_notice("store-eviction", {"tier": "store"})

    def _aside(self, name: Path | None, word: str) -> None:
        self._count(word, "open")
        if name is not None:
            self._on_notice("store-aside", {"tier": "store", "path": str(name), "error": word})

    def _read_failed(self, kind: str) -> None:
        self._count(kind, "get")

    def _write_failed(self, kind: str) -> None:
        self._write_error = kind
        self._count(kind, "write")

    def _count(self, error: str, operation: str) -> None:
        self._on_notice("store-error", {"tier": "store", "error": error, "operation": operation})


def _part(number: int, token: str, part: int) -> Callable[[sqlite3.Connection], bytes | None]:
    return lambda connection: rows.segment(connection, number, token, part)


def _pages(after: int) -> Callable[[sqlite3.Connection], Sequence[tuple[int, str, bytes | None]]]:
    return lambda connection: rows.page(connection, after, _PAGE)
