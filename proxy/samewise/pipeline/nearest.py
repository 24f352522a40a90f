"""The stored entry most like a request, found with bounded work: for explanations, and for what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count

from samewise.core import explain
from samewise.core.entry import Entry
from samewise.core.explain import Nearest
from samewise.core.plan import Plan
from samewise.ports import Clock, Store, StoreUnavailable

LOOKED_AT = 5_000
"""Entries of the store that one search looks at, at most."""
COMPARED = 200
"""Of those of the same tenant and family that live, the youngest ones are compared, at most so many."""
BYTES = 8 * 1024 * 1024
"""Their requests together, at most."""
SECONDS = 0.5
"""A search ends after that time with what it has."""


class Neighbours:
    """Searches the store. `ended` is told an entry and says whether an invalidation came after it."""

    def __init__(self, *, store: Store, clock: Clock, ended: Callable[[Entry], bool]) -> None:
        self._store = store
        self._clock = clock
        self._ended = ended
        self._searching = False

    async def find(self, plan: Plan, *, full: bool = False) -> Nearest | None:
        """The entry most like the plan's first unit, of its tenant and family; its own entry where there is one.

        None where the store has none or can't be asked. In a store with more than `LOOKED_AT` entries it is the
        nearest of those that were looked at. Texts of prompts are shown only where `full`.
        """
        candidates = await self._candidates(plan)
        return await asyncio.to_thread(explain.nearest, plan, candidates, full=full)

    async def refused(self, plan: Plan) -> Nearest | None:
        """As `find`, for a request that is refused; None too while another search runs, so that many cost as one."""
        if self._searching:
            return None
        self._searching = True
        try:
            return await self.find(plan)
        finally:
            self._searching = False

    async def _candidates(self, plan: Plan) -> list[Entry]:
        youngest: list[tuple[float, int, Entry]] = []
        numbers = count()
        with contextlib.suppress(StoreUnavailable):
            own = await self._own(plan)
            if own:
                return own
            async for entry in self._looked_at():
                if entry.tenant != plan.context.tenant or entry.family != plan.family or not self._lives(entry):
                    continue
                item = (entry.created, next(numbers), entry)
                if len(youngest) < COMPARED:
                    heapq.heappush(youngest, item)
                else:
                    heapq.heappushpop(youngest, item)
        return _within(BYTES, (entry for _, _, entry in sorted(youngest, key=lambda item: item[:2], reverse=True)))

    async def _own(self, plan: Plan) -> list[Entry]:
        key = plan.units[0].key
        found = None if key is None else await self._store.get(key)
        return [found.entry] if found is not None and self._lives(found.entry) else []

    async def _looked_at(self) -> AsyncIterator[Entry]:
        """As much of the store as one search may look at. Nothing is cut short: each call of a store is bounded."""
        until = self._clock.monotonic() + SECONDS
        seen = 0
        async for entry in self._store.scan():
            yield entry
            seen += 1
            if seen == LOOKED_AT or self._clock.monotonic() > until:
                return

    def _lives(self, entry: Entry) -> bool:
        return entry.fresh(self._clock.now()) and not self._ended(entry)


def told(found: Nearest | None) -> str:
    """What a refusal says of the nearest entry: its key, and the paths in which it differs, without any text."""
    if found is None:
        return ""
    places = ", ".join(f"{each['path']} ({each['what']})" for each in found.differences[:8])
    more = len(found.differences) - 8
    where = places + (f" and {more} more" if more > 0 else "")
    unlike = where or "what an entry doesn't tell: namespace, epoch, or a header of the API's version"
    return f"; the nearest entry is {found.key}, which differs in {unlike}"


def _within(limit: int, entries: Iterable[Entry]) -> list[Entry]:
    kept: list[Entry] = []
    total = 0
    for entry in entries:
        total += len(entry.request)
        if kept and total > limit:
            break
        kept.append(entry)
    return kept
