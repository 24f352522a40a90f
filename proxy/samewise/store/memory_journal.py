"""Control events and records of one process, for as long as it lives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import msgspec

from samewise.ports import ControlEvent
from samewise.store.wake import Wake


class MemoryJournal:
    """A Journal that ends with the process."""

    def __init__(self) -> None:
        self._events: list[ControlEvent] = []
        self._wake = Wake()

    async def append(self, event: ControlEvent) -> ControlEvent:
        numbered = msgspec.structs.replace(event, number=len(self._events) + 1)
        self._events.append(numbered)
        self._wake.wake()
        return numbered

    async def since(self, number: int) -> Sequence[ControlEvent]:
        return self._events[max(0, number) :]

    def changes(self) -> AsyncIterator[None]:
        return self._wake.listen()

    async def close(self) -> None:
        self._wake.close()


class MemoryRecords:
    """Records that end with the process."""

    def __init__(self) -> None:
        self._kinds: dict[str, OrderedDict[str, bytes]] = {}

    async def add(self, kind: str, identity: str, value: bytes, *, keep: int) -> None:
        records = self._kinds.setdefault(kind, OrderedDict())
        records.pop(identity, None)
        records[identity] = value
        while len(records) > keep:
            records.popitem(last=False)

    async def get(self, kind: str, identity: str) -> bytes | None:
        records = self._kinds.get(kind)
        return None if records is None else records.get(identity)

    async def latest(self, kind: str, limit: int) -> Sequence[tuple[str, bytes]]:
        return list(islice(reversed(self._kinds.get(kind, OrderedDict()).items()), max(0, limit)))
