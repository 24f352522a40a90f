"""All workers seen as one: metrics and status summed, events of all, and every change told to the others at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from samewise.ports import ControlEvent, Journal
from samewise.telemetry.snapshot import Snapshot
from samewise.workers.channel import Question, Sibling, Told
from samewise.workers.counted import Counted
from samewise.workers.place import Place

_WAITING = 4096


class Siblings:
    """The other workers of this one. What a worker counted is not lost when it ends."""

    def __init__(self, place: Place) -> None:
        self._index = place.index
        self._others = {index: Sibling(place.door(index)) for index in range(place.count) if index != place.index}
        self._counted = Counted(place.folder)
        self._own: Callable[[], Told] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def begin(self, own: Callable[[], Told]) -> None:
        """Go on from what was counted before this worker; `own` is what it tells itself."""
        self._counted.read()
        self._own = own

    async def told(self) -> tuple[Sequence[Snapshot], Sequence[dict[str, Any]]]:
        """Snapshots and statuses of the others; of those that ended, what they had counted."""
        answers = await asyncio.gather(*(other.told() for other in self._others.values()))
        told = {index: answer for index, answer in zip(self._others, answers, strict=True) if answer is not None}
        self._counted.take(told)
        if self._own is not None:
            self._counted.take({self._index: self._own()})
            self._counted.write()
        return self._counted.beside(self._index), [each.status for each in told.values()]

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
