"""One question to the upstream: its answer is recorded as it comes, decided at its end, and kept or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec

from samewise.core import canonical, headers
from samewise.core.again import VARIANT
from samewise.core.answer import Answer, Event
from samewise.core.decide import Discard, Keep, Mode, after_fetch, lifetime
from samewise.core.entry import Entry
from samewise.core.families.contract import Family
from samewise.core.fingerprint import CONTRACT
from samewise.core.plan import Plan, Unit
from samewise.core.reason import Reason
from samewise.pipeline.confirm import Confirmations
from samewise.pipeline.lane import Lane
from samewise.pipeline.recording import Head, Recording
from samewise.ports import Call, Clock, Engine, Exchange, Store, StoreUnavailable, Trace, UpstreamFailed

AFTERGLOW = 1.0
"""Seconds that a stream may take to close after its last event, for its connection to be used again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be kept: times in seconds, sizes in bytes."""

    ttl: float
    max_ttl: float
    max_entry: int
    mode: Mode


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: `units` of `plan`, in the words of `call`. `keep` is False where nothing may be stored.

    `refresh`: past the cache, so that what is there is compared with what comes.
    """

    family: Family
    plan: Plan
    units: tuple[Unit, ...]
    call: Call
    keep: bool = True
    refresh: bool = False
    trace: Trace | None = None


class Verification(Protocol):
    """Who compares answers with each other; nothing here waits for it."""

    @property
    def agreements(self) -> int:
        """Recomputations that must agree before an answer is kept; 0: it is kept at once."""

    def on_refresh(self, old: Entry, new: Entry, trace: Trace | None) -> None:
        """The new one was recorded while the old one was there."""

    def on_candidate(self, entry: Entry, trace: Trace | None) -> None:
        """Keep it once enough recomputations agree."""


class Fetcher:
    """Asks, records, decides, stores. `ended` tells whether an invalidation came after an entry's fill began."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        clock: Clock,
        limits: Limits,
        ended: Callable[[Entry], bool],
        lane: Lane,
        paused: Callable[[str], bool] = lambda environment: False,
    ) -> None:
        """`lane`: where long prompts are written down. `paused` tells whether nothing of an environment is kept now."""
        self._engine = engine
        self._confirmations = Confirmations(engine)
        self._store = store
        self._clock = clock
        self._limits = limits
        self._ended = ended
        self._paused = paused
        self._lane = lane
        self.verification: Verification | None = None

    async def fill(self, question: Question, recording: Recording) -> None:
        """Write the recording to its end. Raises UpstreamFailed where there is no whole answer."""
        exchange = await self._open(question.call)
        try:
            await self._take(question, exchange, recording)
        except UpstreamFailed as failure:
            if not _repeats(question.call, exchange, recording, failure):
                raise
            await self._take(question, await self._another(question.call, exchange, failure), recording)

    async def _another(self, call: Call, dead: Exchange, failure: UpstreamFailed) -> Exchange:
        """The same from one other, whose head is as good as the one that is known already. Raises the failure."""
        try:
            exchange = await self._engine.open(msgspec.structs.replace(call, lost=dead.member))
        except UpstreamFailed:
            raise failure from None
        same = exchange.status == 200 and exchange.environment == dead.environment
        if not same or (dead.streaming and not exchange.streaming):
            await exchange.close()
            raise failure
        return exchange

    async def _take(self, question: Question, exchange: Exchange, recording: Recording) -> None:
        try:
            head = _head(exchange)
            recording.begin(head)
            if exchange.streaming and head.status == 200:
                await self._stream(question, exchange, head, recording)
            else:
                answer = Answer(form="json", status=head.status, headers=head.headers, body=await exchange.read())
                recording.settle(answer, await self._decide(question, answer, head, recording))
        finally:
            await exchange.close()

    async def _open(self, call: Call) -> Exchange:
        """Whoever has the environment; where nobody who has it can be reached, whoever there is."""
        try:
            return await self._engine.open(call)
        except UpstreamFailed as failure:
            if failure.sent or failure.kind not in {"none-eligible", "unreachable"} or call.environment is None:
                raise
            return await self._engine.open(msgspec.structs.replace(call, environment=None))

    async def _stream(self, question: Question, exchange: Exchange, head: Head, recording: Recording) -> None:
        """The last event is given out only when the entry is there: who asks again then finds it.

        The head of a stream came before its answer was made, so who made it is asked again at its end.
        """
        bursts = exchange.bursts()
        async for burst in bursts:
            before, last = _parted(burst, question.family)
            if before:
                recording.add(before)
                await recording.room()
                if not recording.joinable and not recording.followers:
                    raise UpstreamFailed("abandoned", "too large to keep, and nobody reads it", sent=True)
            if last is None:
                continue
            answer = Answer(form="sse", headers=head.headers, events=(*_lasting(question, recording), last))
            decision = await self._decide(question, answer, await self._still(question, head), recording)
            recording.add((last,))
            recording.settle(answer, decision)
            await _run_out(bursts)
            return
        answer = Answer(form="sse", headers=head.headers, events=_lasting(question, recording))
        recording.settle(answer, await self._decide(question, answer, head, recording))

    async def _still(self, question: Question, head: Head) -> Head:
        """The head, with its environment emptied where the member is not, or no longer surely, what it was."""
        environment = question.plan.context.environment
        if not question.keep or environment is None or environment.origin != CONTRACT:
            return head
        same = await self._confirmations.environment(head.member) == head.environment
        return head if same else msgspec.structs.replace(head, environment="")

    async def _decide(self, question: Question, answer: Answer, head: Head, recording: Recording) -> Keep | Discard:
        """Kept where every unit is: a failure of one says why."""
        if answer.status != 200:
            return Discard(Reason.UPSTREAM_ERROR)
        if answer.form == "sse" and not recording.complete:
            return Discard(Reason.TOO_LARGE)
        family, units = question.family, question.units
        try:
            parts = [answer] if len(units) == 1 else family.unbatch(answer, [unit.request for unit in units])
        except ValueError:
            return Discard(Reason.TRUNCATED)
        decisions = [
            await self._keep(question, unit, part, head, recording) for unit, part in zip(units, parts, strict=True)
        ]
        return next((decision for decision in decisions if isinstance(decision, Discard)), decisions[0])

    async def _keep(
        self, question: Question, unit: Unit, answer: Answer, head: Head, recording: Recording
    ) -> Keep | Discard:
        failure = question.family.failure(answer, unit.request)
        if failure is not None:
            return Discard(failure)
        if not question.keep or unit.key is None:
            return Discard(unit.reason or Reason.NO_STORE)
        ttl = lifetime(question.plan.controls, default=self._limits.ttl, maximum=self._limits.max_ttl)
        body = question.call.body
        size = len(body) if isinstance(body, bytes) else 0
        written = await self._lane.run(size, _written(size), unit.request)
        entry = self._entry(question, unit, unit.key, request=written, answer=answer, head=head, ttl=ttl)
        environment = question.plan.context.environment
        decision = after_fetch(
            size=max(answer.size(), len(entry.request)),
            max_size=self._limits.max_entry,
            ttl=ttl,
            asked=environment.id if environment else None,
            ran=self._ran(head),
            ended=self._ended(entry),
            mode=self._limits.mode,
        )
        if isinstance(decision, Keep) and self._paused(entry.environment):
            return Discard(Reason.QUARANTINED)
        if isinstance(decision, Keep) and self.verification is not None and self.verification.agreements:
            self.verification.on_candidate(entry, question.trace)
            return Discard(Reason.UNVERIFIED)
        if isinstance(decision, Keep):
            old = await self._there(entry) if question.refresh else None
            began = self._clock.monotonic()
            try:
                if not await self._store.put(entry):
                    return Discard(Reason.INVALIDATED)
            except StoreUnavailable:
                return Discard(Reason.STORE_DOWN)
            finally:
                recording.storing = began, self._clock.monotonic() - began
            if old is not None and self.verification is not None:
                self.verification.on_refresh(old, entry, question.trace)
        return decision

    async def _there(self, entry: Entry) -> Entry | None:
        """What would have been served in the entry's place."""
        if self.verification is None:
            return None
        try:
            found = await self._store.get(entry.key)
        except StoreUnavailable:
            return None
        return found.entry if found is not None and not self._ended(found.entry) else None

    def _ran(self, head: Head) -> str | None:
        """The environment that answered; empty where it changed while the answer was made."""
        for member in self._engine.members():
            if member.url == head.member and member.environment is not None:
                return head.environment if head.environment in {None, member.environment.id} else ""
        return head.environment

    def _entry(
        self, question: Question, unit: Unit, key: str, *, request: bytes, answer: Answer, head: Head, ttl: float
    ) -> Entry:
        context = question.plan.context
        variant = question.plan.controls.variant
        return Entry(
            key=key,
            created=self._clock.now(),
            ttl=ttl,
            began=context.number,
            tenant=context.tenant,
            family=question.family.name,
            model=question.plan.model,
            environment=context.environment.id if context.environment else "",
            snapshot=context.snapshot.label(),
            request=request,
            answer=msgspec.structs.replace(answer, headers=headers.replayable(answer.headers)),
            usage=question.family.usage(answer),
            tags=question.plan.controls.tags,
            sample=question.plan.controls.sample,
            seed=unit.seed,
            instance=head.instance or head.member,
            concurrency=head.concurrency,
            extra={VARIANT: [list(each) for each in variant]} if variant else {},
        )


def _repeats(call: Call, exchange: Exchange, recording: Recording, failure: UpstreamFailed) -> bool:
    """True where the answer can be had again, and died before anything of it was given out or decided."""
    unheard = exchange.status == 200 and recording.size == 0 and recording.decision is None
    return failure.kind == "cut" and call.hedge and not exchange.lost and unheard


def _lasting(question: Question, recording: Recording) -> tuple[Event, ...]:
    noise = question.family.noise
    return tuple([event for event in recording.events() if not noise(event)])


def _head(exchange: Exchange) -> Head:
    return Head(
        status=exchange.status,
        headers=headers.of_response(exchange.headers),
        streaming=exchange.streaming,
        environment=exchange.environment,
        member=exchange.member,
        instance=exchange.instance,
        concurrency=exchange.concurrency,
    )


def _written(size: int) -> Callable[[Any], bytes]:
    return canonical.encode if size < canonical.LARGE else canonical.encode_large


def _parted(burst: Sequence[Event], family: Family) -> tuple[Sequence[Event], Event | None]:
    """What comes before the end of the stream, and its end; None where it isn't there."""
    at = next((at for at, event in enumerate(burst) if family.ends(event)), None)
    return (burst, None) if at is None else (burst[:at], burst[at])


async def _run_out(bursts: AsyncIterator[Sequence[Event]]) -> None:
    with contextlib.suppress(UpstreamFailed, TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(AFTERGLOW):
            await anext(bursts)
