"""Frees what ended entries take: in the background, at a bounded rate, without a word to who is served.

An invalidation is over when it is in the journal; nothing here decides what may be served. A sweep looks at
every entry of a store once and frees those that are over. It begins a moment after the invalidation, so that
what other proxies stored before they knew of it is found too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from samewise.core.entry import Entry
from samewise.ports import Clock, ControlEvent, Notice, Observer, Store, StoreUnavailable

RATE = 5_000
"""Entries a second that a sweep looks at."""
BATCH = 50
SETTLE = 1.5
"""Seconds from an invalidation to its sweep."""
RETRY = 5.0
"""Seconds until a sweep that the store cut short begins anew."""


class Reclaimer:
    """Sweeps one store. `ended_by` gives the number of the invalidation that ended an entry, 0 where none did."""

    def __init__(
        self,
        *,
        store: Store,
        tier: str,
        ended_by: Callable[[Entry], int],
        observer: Observer,
        clock: Clock,
        rate: float = RATE,
        settle: float = SETTLE,
    ) -> None:
        self._store = store
        self._tier = tier
        self._ended_by = ended_by
        self._observer = observer
        self._clock = clock
        self._rate = rate
        self._settle = settle
        self._due: dict[int, ControlEvent] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweep from now on, whenever something is due."""
        self._task = asyncio.create_task(self._run(), name=f"reclaim {self._tier}")

    async def close(self) -> None:
        """Stop; a sweep that runs is given up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def due(self, event: ControlEvent) -> None:
        """An invalidation happened."""
        self._due[event.number] = event
        self._wake.set()

    async def sweep(self) -> dict[int, tuple[int, int]]:
        """One sweep: entries and bytes of payload that were freed, by invalidation. Raises StoreUnavailable."""
        freed: dict[int, tuple[int, int]] = {}
        batch: list[Entry] = []
        looked = 0
        began = self._clock.monotonic()
        async for entry in self._store.scan():
            looked += 1
            number = self._ended_by(entry)
            if number:
                batch.append(entry)
                entries, size = freed.get(number, (0, 0))
                freed[number] = (entries + 1, size + entry.answer.size() + len(entry.request))
            if looked % BATCH == 0:
                await self._free(batch)
                await asyncio.sleep(max(0.0, began + looked / self._rate - self._clock.monotonic()))
        await self._free(batch)
        return freed

    async def _free(self, batch: list[Entry]) -> None:
        if batch:
            await self._store.reclaim(batch)
            batch.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._settle)
            self._wake.clear()
            swept = dict(self._due)
            try:
                freed = await self.sweep()
            except StoreUnavailable:
                self._wake.set()
                await asyncio.sleep(RETRY)
                continue
            for number in swept:
                self._due.pop(number, None)
            self._tell(list(swept.values()), freed)

    def _tell(self, swept: Sequence[ControlEvent], freed: dict[int, tuple[int, int]]) -> None:
        for event in swept:
            entries, size = freed.get(event.number, (0, 0))
            told: dict[str, Any] = {
                "number": event.number,
                "scope": event.subject,
                "value": event.values.get("value", ""),
                "by": event.by,
                "reason": event.reason,
                "entries": entries,
                "bytes": size,
            }
            self._observer.notice(Notice(kind="reclaimed", attributes={"tier": self._tier}, detail=told))
