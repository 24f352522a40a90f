"""The log of receipts: a file that is only ever appended to, which several processes may share.

Receipts wait in memory for the writing thread's next batch, which is on the disk before the next begins. Under a lock
on the file each batch follows whatever line is the last by then, so that there is one chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from samewise.core import receipts
from samewise.core.receipts import Checked, Line, Receipt, Sign, Verify

_log = logging.getLogger("samewise.receipts")
_BATCH = 512
_TAIL = 1 << 16
_RETRY = 1.0


class ReceiptLog:
    """`close` writes what waits. A line that was cut by a crash is set apart by an end of line, and a check says so."""

    def __init__(self, path: Path, *, sign: Sign, verify: Verify) -> None:
        """Raises OSError where the file can't be opened for appending."""
        self._path = path
        self._sign = sign
        self._verify = verify
        self._waiting: queue.SimpleQueue[Receipt | threading.Event | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        path.touch(mode=0o600)
        self._thread = threading.Thread(target=self._work, name="receipts", daemon=True)

    def start(self) -> None:
        """Write from now on."""
        self._thread.start()

    def append(self, receipt: Receipt) -> None:
        """Keep it, soon and in order."""
        self._waiting.put(receipt)

    async def get(self, identity: str) -> Line | None:
        """The line with this id, None where there is none."""
        await self.flush()
        return await asyncio.to_thread(self._find, identity)

    async def check(self) -> Checked:
        """Whether all of it is as it was written. Reads the whole file."""
        await self.flush()
        return await asyncio.to_thread(self._check)

    async def flush(self) -> None:
        """Return when what was appended is on the disk."""
        done = threading.Event()
        self._waiting.put(done)
        await asyncio.to_thread(done.wait)

    async def close(self) -> None:
        """Write what waits, and end; what can't be written by then is lost, and logged."""
        self._ending.set()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def _find(self, identity: str) -> Line | None:
        wanted = f'"id":"{identity}"'.encode()
        with self._path.open("rb") as file:
            for raw in file:
                if wanted in raw:
                    line = receipts.parse(raw)
                    if line is not None and line.receipt.id == identity:
                        return line
        return None

    def _check(self) -> Checked:
        with self._path.open("rb") as file, _locked(file, exclusive=False):
            return receipts.check(file, self._verify)

    def _work(self) -> None:
        while True:
            batch: list[Receipt] = []
            waiters: list[threading.Event] = []
            item = self._waiting.get()
            while True:
                match item:
                    case Receipt():
                        batch.append(item)
                    case threading.Event():
                        waiters.append(item)
                if item is None or len(batch) >= _BATCH or self._waiting.empty():
                    break
                item = self._waiting.get()
            if batch:
                self._write(batch)
            for waiter in waiters:
                waiter.set()
            if item is None:
                return

    def _write(self, batch: list[Receipt]) -> None:
        """Until it is written: a receipt that was given out is kept as soon as the disk lets it."""
        told = False
        while True:
            try:
                self._append(batch)
                return
            except OSError as error:
                if not told:
                    _log.error("receipts can't be written to %s, and wait: %s", self._path, error)
                told = True
                if self._ending.wait(_RETRY):
                    _log.error("%d receipts are lost", len(batch))
                    return

    def _append(self, batch: list[Receipt]) -> None:
        with self._path.open("ab+", buffering=0) as file, _locked(file, exclusive=True):
            size = file.seek(0, os.SEEK_END)
            last, ragged = _last(file, size)
            lines = [b"\n"] if ragged else []
            for receipt in batch:
                last = receipts.append(last, receipt, self._sign)
                lines.append(last.encoded())
            try:
                data = b"".join(lines)
                while data:
                    data = data[file.write(data) or 0 :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise


def _last(file: IO[bytes], size: int) -> tuple[Line | None, bool]:
    """The last line that is one, and whether something without an end follows it."""
    reach = _TAIL
    while size:
        file.seek(max(0, size - reach))
        tail = file.read(min(reach, size))
        for raw in reversed(tail.split(b"\n")[(0 if reach >= size else 1) :]):
            line = receipts.parse(raw) if raw else None
            if line is not None:
                return line, not tail.endswith(b"\n")
        if reach >= size:
            return None, not tail.endswith(b"\n")
        reach *= 4
    return None, False


@contextlib.contextmanager
def _locked(file: IO[bytes], *, exclusive: bool) -> Iterator[None]:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
