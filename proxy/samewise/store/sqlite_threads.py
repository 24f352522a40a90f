"""Two threads around one SQLite file: one reads, one writes; the event loop waits for neither."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from samewise.ports import StoreUnavailable
from samewise.store import sqlite_file

Work = Callable[[sqlite3.Connection], Any]

_READ_BATCH = 64
_WRITE_BATCH = 512
_WRITE_BYTES = 8 << 20
_TICK = 1.0
_REOPEN = 1.0
_LOCK_RETRIES = 5


class Job(msgspec.Struct):
    """Work for a thread. `future` hears how it went; where it was cancelled before, nothing is done.

    `size` is about how many bytes it writes; `durable` work is on the disk when it is told to be done.
    """

    work: Work
    future: asyncio.Future[Any] | None = None
    size: int = 0
    durable: bool = False


Finished = tuple[asyncio.Future[Any], Any, BaseException | None]


class SqliteThread:
    """A thread with a connection of its own. Work is done in order; what comes while it runs is one batch.

    A file that can't be used is set aside (`on_aside` is told its new name, or None where another
    process did it) and begun anew; one that can't be opened is tried again every second, and work
    fails with StoreUnavailable meanwhile. Callbacks run in the event loop's thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        writes: bool,
        busy: float,
        loop: asyncio.AbstractEventLoop,
        on_aside: Callable[[Path | None, str], None],
        on_error: Callable[[str], None],
        tick: Work | None = None,
    ) -> None:
        self._path = path
        self._writes = writes
        self._busy = busy
        self._loop = loop
        self._on_aside = on_aside
        self._on_error = on_error
        self._tick = tick
        self._ticked = time.monotonic()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._looked = 0.0
        self._refused: tuple[float, str] = (0.0, "")
        self._thread = threading.Thread(target=self._main, name=f"samewise-{path.name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    async def ask(self, work: Work, *, within: float, durable: bool = False) -> Any:
        """What the work returns. Raises StoreUnavailable; after `within` seconds the work is called off."""
        future: asyncio.Future[Any] = self._loop.create_future()
        expiry = self._loop.call_later(within, _expire, future)
        self._queue.put(Job(work, future, 0, durable))
        try:
            return await future
        finally:
            expiry.cancel()

    async def close(self) -> None:
        """Do what was submitted, then end."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, 30.0)

    def _main(self) -> None:
        running = True
        while running:
            batch: list[Job] = []
            running = self._collect(batch)
            if batch:
                self._tell(self._run(batch))
            if self._tick is not None and time.monotonic() - self._ticked >= _TICK:
                self._ticked = time.monotonic()
                self._run([Job(self._tick)])
        self._disconnect()

    def _collect(self, batch: list[Job]) -> bool:
        try:
            job = self._queue.get(timeout=_TICK if self._tick is not None else None)
            size = 0
            while job is not None:
                if job.future is None or not job.future.done():
                    batch.append(job)
                    size += job.size
                if len(batch) >= (_WRITE_BATCH if self._writes else _READ_BATCH) or size >= _WRITE_BYTES:
                    return True
                job = self._queue.get_nowait()
        except queue.Empty:
            return True
        return False

    def _run(self, batch: list[Job]) -> list[Finished]:
        for attempt in range(_LOCK_RETRIES):
            try:
                connection = self._connect()
                return self._write(connection, batch) if self._writes else _read(connection, batch)
            except Exception as error:
                kind = error.kind if isinstance(error, StoreUnavailable) else sqlite_file.kind_of(error)
                if kind in ("corrupt", "version"):
                    self._set_aside(kind)
                    continue
                if kind == "locked" and self._writes and attempt < _LOCK_RETRIES - 1:
                    continue
                if not isinstance(error, StoreUnavailable):
                    self._call(self._on_error, kind)
                failure = StoreUnavailable(kind, f"{self._path}: {error}")
                return [(job.future, None, failure) for job in batch if job.future is not None]
        failure = StoreUnavailable("corrupt", f"{self._path} could not be begun anew")
        return [(job.future, None, failure) for job in batch if job.future is not None]

    def _write(self, connection: sqlite3.Connection, batch: list[Job]) -> list[Finished]:
        durable = any(job.durable for job in batch)
        if durable:
            connection.execute("PRAGMA synchronous = FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [(job.future, job.work(connection)) for job in batch]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        finally:
            if durable:
                connection.execute("PRAGMA synchronous = NORMAL")
        return [(future, result, None) for future, result in results if future is not None]

    def _connect(self) -> sqlite3.Connection:
        now = time.monotonic()
        if self._connection is not None and now - self._looked >= _TICK:
            self._looked = now
            if sqlite_file.identity(self._path) != self._identity:
                self._disconnect()
        if self._connection is not None:
            return self._connection
        refused_at, kind = self._refused
        if kind and now - refused_at < _REOPEN:
            raise StoreUnavailable(kind, f"{self._path} can't be opened")
        try:
            if not self._writes and not self._path.exists():
                raise StoreUnavailable("unopenable", "not there yet")
            self._connection = sqlite_file.connect(self._path, busy=self._busy, create=self._writes)
        except sqlite3.Error as error:
            if self._writes:
                self._refused = (now, sqlite_file.kind_of(error))
            raise
        self._refused = (0.0, "")
        self._looked = now
        self._identity = sqlite_file.identity(self._path)
        return self._connection

    def _set_aside(self, word: str) -> None:
        broken = self._identity or sqlite_file.identity(self._path)
        self._disconnect()
        try:
            name = sqlite_file.set_aside(self._path, broken, word)
        except OSError:
            self._refused = (time.monotonic(), word)
            return
        self._call(self._on_aside, name, word)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
        self._identity = None

    def _tell(self, finished: list[Finished]) -> None:
        if finished:
            self._call(_resolve, finished)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _read(connection: sqlite3.Connection, batch: list[Job]) -> list[Finished]:
    return [(job.future, job.work(connection), None) for job in batch if job.future is not None]


def _resolve(finished: list[Finished]) -> None:
    for future, result, error in finished:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(StoreUnavailable("timeout"))
