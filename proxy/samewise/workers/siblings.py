"""All workers seen as one: metrics and status summed, events of all, and every change told to the others at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from samewise.ports import ControlEvent, Journal
from samewise.telemetry.instruments import INSTRUMENTS
from samewise.telemetry.snapshot import Snapshot, merge
from samewise.workers.channel import Question, Sibling, Told
from samewise.workers.place import Place

_WAITING = 4096


class Siblings:
    """The other workers of this one. What a worker counted is not lost when it ends."""

    def __init__(self, place: Place) -> None:
        self._others = {index: Sibling(place.door(index)) for index in range(place.count) if index != place.index}
        self._last: dict[int, Told] = {}
        self._gone: list[Snapshot] = []
        self._telling: set[asyncio.Task[None]] = set()

    async def told(self) -> tuple[Sequence[Snapshot], Sequence[dict[str, Any]]]:
        """Snapshots and statuses of the others; of those that ended, what they had counted."""
        answers = await asyncio.gather(*(other.told() for other in self._others.values()))
        statuses = []
        for index, answer in zip(self._others, answers, strict=True):
            last = self._last.get(index)
            if answer is None:
                continue
            if last is not None and last.instance != answer.instance:
                self._gone = [merge([*self._gone, _counted(last.snapshot)])]
            self._last[index] = answer
            statuses.append(answer.status)
        return [*self._gone, *(told.snapshot for told in self._last.values())], statuses

    async def recent(self, limit: int) -> Sequence[dict[str, Any]]:
        """The last things that happened in each of the others, in no order."""
        answers = await asyncio.gather(*(other.recent(limit) for other in self._others.values()))
        return [event for events in answers for event in events]

    async def caught_up(self) -> None:
        """Return when the others have taken in what the journal has, or can't be asked."""
        await asyncio.gather(*(other.tell(Question("catch-up")) for other in self._others.values()))

    def look(self, url: str) -> None:
        """Have the others look at an upstream that is not what it was."""
        for other in self._others.values():
            task = asyncio.get_running_loop().create_task(other.tell(Question("look", url)))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens in the others from now on; a listener that falls behind loses the newest."""
        happened: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_WAITING)

        async def follow(other: Sibling) -> None:
            async for event in other.events():
                if not happened.full():
                    happened.put_nowait(event)

        tasks = [asyncio.create_task(follow(other)) for other in self._others.values()]
        try:
            while True:
                yield await happened.get()
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        for task in self._telling:
            task.cancel()
        for other in self._others.values():
            other.close()


class ToldJournal:
    """A Journal whose appends the other workers have taken in by the time that they return."""

    def __init__(self, journal: Journal, siblings: Siblings) -> None:
        self._journal = journal
        self._siblings = siblings
        self.since = journal.since
        self.changes = journal.changes
        self.close = journal.close

    async def append(self, event: ControlEvent) -> ControlEvent:
        """As the port says."""
        numbered = await self._journal.append(event)
        await self._siblings.caught_up()
        return numbered


def _counted(snapshot: Snapshot) -> Snapshot:
    """What stays true of a process that is gone: counters and histograms."""
    numbers = tuple(number for number in snapshot.numbers if INSTRUMENTS[number.name].kind == "counter")
    return msgspec.structs.replace(snapshot, numbers=numbers)
