"""What follows from a verdict. Every act names the recording that it is about, and leaves any other alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from samewise.core import headers
from samewise.core.answer import Answer
from samewise.core.entry import Entry
from samewise.core.families.registry import BY_NAME
from samewise.pipeline.control import Control
from samewise.pipeline.verify import withheld
from samewise.pipeline.verify.recompute import Run
from samewise.ports import Clock, ControlEvent, Store

_COUNTED = 10_000


class Acts:
    """All may raise StoreUnavailable. `who` names this proxy in the journal."""

    def __init__(self, *, control: Control, store: Store, clock: Clock, who: str) -> None:
        self._control = control
        self._store = store
        self._clock = clock
        self._who = who
        self._agreed: OrderedDict[str, int] = OrderedDict()

    async def agreed(self, entry: Entry, verified: int | None = None) -> None:
        """One more recomputation agreed with the entry; `verified`: how many have now."""

        def one_more(stored: Entry) -> Entry:
            if not stored.same(entry):
                return stored
            return msgspec.structs.replace(stored, verified=stored.verified + 1 if verified is None else verified)

        await self._store.revise(entry.key, one_more)

    async def evict(self, entry: Entry) -> None:
        """The entry goes, from the memory of every proxy too."""
        if await self._store.revise(entry.key, lambda stored: None if stored.same(entry) else stored):
            await self._record(withheld.EVICT, entry)

    async def replace(self, entry: Entry, run: Run | None) -> None:
        """What was recomputed becomes the entry, for as long as a new one lives."""
        family = BY_NAME.get(entry.family)
        if run is None or family is None:
            return
        events = tuple(event for event in run.answer.events if not family.noise(event))
        fields = headers.replayable(headers.of_response(run.answer.headers))
        new = msgspec.structs.replace(
            entry,
            created=self._clock.now(),
            answer=Answer(form=run.answer.form, headers=fields, body=run.answer.body, events=events),
            usage=run.usage,
            verified=0,
            instance=run.instance or run.member,
            concurrency=run.concurrency,
        )
        if await self._store.revise(entry.key, lambda stored: new if stored.same(entry) else stored):
            await self._record(withheld.REPLACE, entry)

    async def quarantine(self, entry: Entry) -> None:
        """The upstream answers in the entry's place, on every proxy."""
        if not self._control.withheld.quarantined(entry) and await self._stored(entry):
            await self._record(withheld.QUARANTINE, entry)

    async def released(self, entry: Entry, needed: int) -> None:
        """One more agreed with an entry in quarantine; after `needed` in a row it is served again."""
        count = self._agreed.get(entry.key, 0) + 1
        self._agreed[entry.key] = count
        if len(self._agreed) > _COUNTED:
            self._agreed.popitem(last=False)
        if count >= needed:
            self._agreed.pop(entry.key, None)
            await self._record(withheld.RELEASE, entry, {"agreed": count})

    def disagreed(self, entry: Entry) -> None:
        """The row of agreements is broken."""
        self._agreed.pop(entry.key, None)

    async def admit(self, entry: Entry) -> None:
        """Enough recomputations agreed: it is kept, for as long as it would have been."""
        await self._store.put(entry)

    async def _stored(self, entry: Entry) -> bool:
        found = await self._store.get(entry.key)
        return found is not None and found.entry.same(entry)

    async def _record(self, kind: str, entry: Entry, values: Mapping[str, Any] | None = None) -> None:
        await self._control.record(
            ControlEvent(
                kind=kind,
                subject=entry.key,
                values={**withheld.about(entry), **(values or {})},
                by=self._who,
                reason="verification",
                at=self._clock.now(),
            )
        )
