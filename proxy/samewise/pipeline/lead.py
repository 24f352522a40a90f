"""A fetch that one process makes for all that share the store; the others take its answer from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from samewise.core.decide import Keep
from samewise.core.entry import Entry
from samewise.pipeline.fetch import Fetcher, Question
from samewise.pipeline.recording import Head, Recording
from samewise.ports import Clock, Leases, Store, StoreUnavailable


class Leader:
    """`ended` tells whether an invalidation came after an entry's fill began."""

    def __init__(
        self, *, leases: Leases, fetcher: Fetcher, store: Store, clock: Clock, ended: Callable[[Entry], bool]
    ) -> None:
        self._leases = leases
        self._fetcher = fetcher
        self._store = store
        self._clock = clock
        self._ended = ended

    async def fill(self, question: Question, recording: Recording, *, key: str, since: int) -> None:
        """Write the recording to its end, from the upstream or from what another process stored meanwhile.

        Raises UpstreamFailed where there is no whole answer.
        """
        turn = await self._leases.turn(key, since)
        if turn == "landed" and (entry := await self._landed(key)) is not None:
            self._borrow(entry, recording)
            return
        try:
            await self._fetcher.fill(question, recording)
        finally:
            if turn == "mine":
                stored = isinstance(recording.decision, Keep)
                await asyncio.shield(self._leases.release(key, since, stored=stored))

    async def _landed(self, key: str) -> Entry | None:
        try:
            found = await self._store.get(key)
        except StoreUnavailable:
            return None
        if found is None or not found.entry.fresh(self._clock.now()) or self._ended(found.entry):
            return None
        return found.entry

    def _borrow(self, entry: Entry, recording: Recording) -> None:
        answer = entry.answer
        recording.borrowed = True
        recording.begin(
            Head(
                status=answer.status,
                headers=answer.headers,
                streaming=answer.form == "sse",
                environment=entry.environment,
                member="",
                instance=entry.instance,
                concurrency=entry.concurrency,
            )
        )
        recording.add(answer.events)
        recording.settle(answer, Keep(entry.ttl - entry.age(self._clock.now())))
