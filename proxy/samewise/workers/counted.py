"""What workers had counted when they were last asked, written down: a counter that was shown never falls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from samewise.telemetry.instruments import INSTRUMENTS
from samewise.telemetry.snapshot import Snapshot, merge
from samewise.workers.channel import Told

_NAME = "counted"


class _Written(msgspec.Struct):
    gone: Snapshot
    last: dict[int, Told]


class Counted:
    """By worker, in a file of `folder`. The successor of a worker that kept it goes on from there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._gone = Snapshot()
        self._last: dict[int, Told] = {}

    def read(self) -> None:
        """Go on from what was written, if anything was."""
        try:
            written = msgspec.msgpack.decode(self._path.read_bytes(), type=_Written)
        except FileNotFoundError:
            return
        self._gone, self._last = written.gone, written.last

    def take(self, told: Mapping[int, Told]) -> None:
        """What these workers tell now. One that is another than before has a dead predecessor, whose counts stay."""
        for index, new in told.items():
            old = self._last.get(index)
            if old is not None and old.instance != new.instance:
                self._gone = merge([self._gone, _lasting(old.snapshot)])
            self._last[index] = new

    def write(self) -> None:
        """Write all of it down."""
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(msgspec.msgpack.encode(_Written(self._gone, self._last)))
        fresh.replace(self._path)

    def beside(self, index: int) -> list[Snapshot]:
        """What all have counted, but this worker."""
        return [self._gone, *(told.snapshot for at, told in self._last.items() if at != index)]


def _lasting(snapshot: Snapshot) -> Snapshot:
    """What stays true of a process that is gone: counters and histograms."""
    numbers = tuple(number for number in snapshot.numbers if INSTRUMENTS[number.name].kind == "counter")
    return msgspec.structs.replace(snapshot, numbers=numbers)
