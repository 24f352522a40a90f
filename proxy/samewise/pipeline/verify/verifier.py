"""The verifier: takes what is offered, recomputes it while there is room, records what came of it, and acts.

It never makes a request wait: what is offered is a note in a bounded queue, and what finds no room is dropped and
counted. A verdict about one recording never touches another: every consequence names the recording it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

import msgspec

from samewise.core import choose
from samewise.core.decide import Action, Agreed, Evict, Flag, Ignore, Quarantine, Replace, after_verify
from samewise.core.divergence import COUNTED
from samewise.core.entry import Entry
from samewise.core.families.registry import BY_NAME
from samewise.core.plan import Plan
from samewise.pipeline.verify.acts import Acts
from samewise.pipeline.verify.book import Book
from samewise.pipeline.verify.episodes import Episodes
from samewise.pipeline.verify.judge import Finding, Judge
from samewise.pipeline.verify.offer import Chooser, Job, Waiting, Why
from samewise.pipeline.verify.recompute import Run, cached_tokens
from samewise.pipeline.verify.room import Room
from samewise.pipeline.verify.withheld import Withheld
from samewise.ports import Clock, Notice, Observer, Store, StoreUnavailable, Trace

_log = logging.getLogger("samewise.verify")
LATER = 2.0
"""Seconds after which the answer to who asked past the cache is compared with the entry."""
FULL = 0.25
"""Seconds until upstreams that had no room are looked at again."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. `agreements`: recomputations that must agree before an answer is kept at all, 0 for none."""

    rate: float
    concurrency: int
    action: Action
    warm: float
    each: float
    queue: int
    release: int
    agreements: int = 0


class Verifier:
    """`start` and `close` it; `on_hit`, `on_refresh` and `on_candidate` never wait and never raise."""

    def __init__(
        self,
        *,
        policy: Policy,
        judge: Judge,
        room: Room,
        acts: Acts,
        book: Book,
        episodes: Episodes,
        withheld: Withheld,
        store: Store,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._policy = policy
        self._judge = judge
        self._room = room
        self._acts = acts
        self._book = book
        self._episodes = episodes
        self._withheld = withheld
        self._store = store
        self._observer = observer
        self._clock = clock
        self._waiting = Waiting(policy.queue)
        self._chooser = Chooser(rate=policy.rate, each=policy.each)
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._busy = 0
        self._later: deque[tuple[Entry, Entry, Trace | None]] = deque()
        self._turns: dict[str, int] = {}
        self._watched: dict[str, list[asyncio.Future[Finding]]] = {}

    # --- what is offered ------------------------------------------------------------------------------

    @property
    def agreements(self) -> int:
        """Recomputations that must agree before an answer is kept."""
        return self._policy.agreements

    def on_hit(self, entry: Entry, plan: Plan, trace: Trace | None) -> None:
        """An entry was served."""
        if self._chooser.wants(entry.key, self._clock.now()):
            self._offer("hit", entry, trace)

    def on_held(self, entry: Entry, trace: Trace | None) -> None:
        """An entry would have been served, but is withheld."""
        self._offer("held", entry, trace)

    def on_refresh(self, old: Entry, new: Entry, trace: Trace | None) -> None:
        """A caller asked past the cache, and got this answer while that one was there.

        They are compared a moment later, so that a second call to confirm a difference meets another moment too.
        """
        if len(self._later) >= self._policy.queue:
            self._observer.notice(Notice(kind="verify-dropped"))
            return
        self._later.append((old, new, trace))
        asyncio.get_running_loop().call_later(LATER, self._refreshed)

    def on_candidate(self, entry: Entry, trace: Trace | None) -> None:
        """An answer is kept only after recomputations agreed with it."""
        self._offer("admit", entry, trace)

    async def verify(self, entry: Entry) -> Finding:
        """What comes of it, for an operator who asked and waits. Raises asyncio.QueueFull."""
        heard: asyncio.Future[Finding] = asyncio.get_running_loop().create_future()
        if not self._waiting.add(Job(why="asked", entry=entry)):
            raise asyncio.QueueFull
        self._watched.setdefault(entry.key, []).append(heard)
        self._wake.set()
        return await heard

    def __len__(self) -> int:
        """What waits, and what is being recomputed."""
        return len(self._waiting) + self._busy

    def _refreshed(self) -> None:
        old, new, trace = self._later.popleft()
        self._offer("refresh", old, trace, new)

    def _offer(self, why: Why, entry: Entry, trace: Trace | None, fresh: Entry | None = None) -> None:
        if not self._waiting.add(Job(why=why, entry=entry, trace=trace, fresh=fresh)):
            self._observer.notice(Notice(kind="verify-dropped"))
            return
        self._wake.set()

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recompute from now on."""
        self._tasks = [
            asyncio.create_task(self._work(), name=f"verify {number}") for number in range(self._policy.concurrency)
        ]

    async def close(self) -> None:
        """Stop; what runs is given up."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._episodes.close()

    async def _work(self) -> None:
        while True:
            job = await self._next()
            self._busy += 1
            try:
                await self._do(job)
            except Exception:
                _log.exception("a verification failed")
            finally:
                self._busy -= 1

    async def _next(self) -> Job:
        """The first whose environment is not left alone and has room."""
        while True:
            self._wake.clear()
            pause: float | None = None
            for environment in self._waiting.environments():
                closed = self._room.closed_for(environment)
                if closed <= 0 and (job := self._waiting.take(environment)) is not None:
                    if await self._room.for_one(job.entry):
                        return job
                    self._waiting.back(job)
                    closed = FULL
                pause = closed if pause is None else min(pause, closed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                if pause is not None:
                    await asyncio.sleep(min(pause, FULL))

    # --- one verification -----------------------------------------------------------------------------

    async def _do(self, job: Job) -> None:
        started = self._clock.monotonic()
        entry = job.entry if job.why in {"admit", "refresh"} else await self._current(job.entry)
        if entry is None:
            finding = Finding(outcome="inconclusive", why="the entry is gone")
            self._tell(job, job.entry, finding, started)
            return
        if job.why == "admit":
            await self._admit(job, entry, started)
            return
        off = self._policy.rate <= 0 and job.why == "refresh"
        finding = await self._judge.verify(entry, warm=self._warm(entry), first=_first(job), confirm=not off)
        await self._follow(job, entry, finding, started)

    async def _admit(self, job: Job, entry: Entry, started: float) -> None:
        """Keep the answer once enough recomputations agree; the first that doesn't ends it."""
        for _ in range(self._policy.agreements):
            finding = await self._judge.verify(entry, warm=self._warm(entry))
            await self._follow(job, entry, finding, started)
            if finding.outcome != "match":
                return
            started = self._clock.monotonic()
        await self._acts.admit(msgspec.structs.replace(entry, verified=self._policy.agreements))

    async def _follow(self, job: Job, entry: Entry, finding: Finding, started: float) -> None:
        if finding.failure is not None:
            self._room.failed(entry.environment, finding.failure)
        elif finding.runs:
            self._room.worked(entry.environment)
        self._count_tokens(job, entry, finding)
        identity = ""
        try:
            decision = after_verify(finding.outcome, self._policy.action)
            if not isinstance(decision, Agreed | Ignore):
                identity = await self._book.write(entry, finding, self._policy.action)
            if job.why != "admit":
                await self._act(job, entry, finding, decision)
        except StoreUnavailable as failure:
            _log.warning("what a verification found could not be kept: %s", failure.kind)
        self._tell(job, entry, finding, started, identity)
        await self._episodes.saw(entry, finding)

    async def _act(
        self,
        job: Job,
        entry: Entry,
        finding: Finding,
        decision: Agreed | Flag | Evict | Replace | Quarantine | Ignore,
    ) -> None:
        match decision:
            case Agreed():
                await self._acts.agreed(job.fresh or entry, entry.verified + 1 if job.fresh is not None else None)
                if self._withheld.quarantined(entry):
                    await self._acts.released(entry, self._policy.release)
            case Evict():
                await self._acts.evict(entry)
            case Replace():
                await self._acts.replace(entry, finding.shown)
            case Quarantine():
                await self._acts.quarantine(entry)
            case Flag() | Ignore():
                pass
        if finding.outcome in {"divergent", "near_tie", "flaky"}:
            self._acts.disagreed(entry)

    async def _current(self, entry: Entry) -> Entry | None:
        """What is stored, where it still is this recording."""
        try:
            found = await self._store.get(entry.key)
        except StoreUnavailable:
            return entry
        return found.entry if found is not None and found.entry.same(entry) else None

    def _warm(self, entry: Entry) -> bool:
        turn = self._turns.get(entry.environment, 0)
        self._turns[entry.environment] = turn + 1
        return choose.is_warm(entry.key, turn, self._policy.warm)

    def _count_tokens(self, job: Job, entry: Entry, finding: Finding) -> None:
        own = finding.runs[1:] if job.fresh is not None else finding.runs
        tokens = sum(run.usage.completion_tokens for run in own)
        if tokens:
            self._observer.notice(Notice(kind="tokens", attributes={"kind": "verified"}, value=tokens))

    def _tell(self, job: Job, entry: Entry, finding: Finding, started: float, identity: str = "") -> None:
        found = finding.comparison
        detail = {
            "id": identity,
            "key": entry.key,
            "model": entry.model,
            "tenant": entry.tenant,
            "outcome": finding.outcome,
            "why": finding.why,
            "part": found.part,
            "position": found.position,
            "gap": found.gap,
            "layer": finding.layer,
            "instance": finding.shown and (finding.shown.instance or finding.shown.member),
            "odd": list(finding.odd),
        }
        self._observer.notice(
            Notice(
                kind="verification",
                attributes={"verdict": COUNTED[finding.outcome], "environment": entry.environment},
                detail={name: value for name, value in detail.items() if value not in (None, "", [])},
                trace=job.trace,
                started=started,
                duration=self._clock.monotonic() - started,
            )
        )
        for heard in self._watched.pop(entry.key, ()):
            if not heard.done():
                heard.set_result(finding)


def _first(job: Job) -> Run | None:
    """What the caller got who asked past the cache, as a recomputation."""
    fresh = job.fresh
    family = BY_NAME.get(job.entry.family)
    if fresh is None or family is None:
        return None
    cached = cached_tokens(family, fresh.answer)
    return Run(
        answer=fresh.answer,
        outputs=tuple(family.outputs(fresh.answer)),
        usage=fresh.usage,
        cached_tokens=cached,
        warm=None if cached is None else cached > 0,
        concurrency=fresh.concurrency,
        member=fresh.instance or "",
        instance=fresh.instance,
        at=fresh.created,
    )
