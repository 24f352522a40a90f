"""Where an answer comes from: the store, a fetch under way, or a fetch that begins now."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from samewise.core import headers, request
from samewise.core.decide import Bypass, Fetch, Look, Mode, Refresh, Refuse, Serve, after_lookup, on_arrival
from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.core.explain import Nearest
from samewise.core.plan import Plan, Unit
from samewise.core.reason import Reason
from samewise.core.route import prompt_prefix
from samewise.pipeline.account import Marks
from samewise.pipeline.ask import Asked
from samewise.pipeline.control import Control
from samewise.pipeline.fetch import Fetcher, Question
from samewise.pipeline.flight import Fill, Flights
from samewise.pipeline.lead import Leader
from samewise.pipeline.nearest import told
from samewise.pipeline.source import Coming, Given, Source
from samewise.ports import Call, Clock, Found, Store, StoreUnavailable, Trace


class Resolver:
    """`on_hit` is told of every entry that is served, `on_held` of those that verification withholds.

    `nearest` finds the entry that a refusal names.
    """

    def __init__(
        self,
        *,
        store: Store,
        fetcher: Fetcher,
        flights: Flights,
        control: Control,
        clock: Clock,
        mode: Mode,
        on_hit: Callable[[Entry, Plan, Trace | None], None] | None = None,
        on_held: Callable[[Entry, Trace | None], None] | None = None,
        nearest: Callable[[Plan], Awaitable[Nearest | None]] | None = None,
        leader: Leader | None = None,
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._flights = flights
        self._control = control
        self._clock = clock
        self._mode = mode
        self._on_hit = on_hit
        self._on_held = on_held
        self._nearest = nearest
        self._leader = leader

    async def resolve(
        self, asked: Asked, unit: Unit, marks: Marks, divert: Callable[[], Asked | None] = lambda: None
    ) -> Source:
        """The source of one unit's answer. Raises ProxyError 504 where it may only come from the cache.

        What landed while the store was asked is looked for once more before a fetch begins. `divert` is asked then
        whether another environment shall answer.
        """
        for last in (False, True):
            landed = self._flights.landed
            looked = await self.look(asked, unit, marks)
            if isinstance(looked, Given):
                return looked
            if not isinstance(looked, Fetch):
                return self.alone(asked, (unit,), marks, keep=isinstance(looked, Refresh))
            joined = self.join(unit.key or "", marks)
            if joined is not None:
                return joined
            if last or self._flights.landed == landed:
                break
        other = divert()
        if other is not None:
            return await self.resolve(other, other.plan.units[0], marks)
        return self.begin(asked, (unit,), unit.key or "", marks)

    async def look(self, asked: Asked, unit: Unit, marks: Marks) -> Given | Fetch | Refresh | Bypass:
        """The entry, or how the upstream is to be asked."""
        plan = asked.plan
        match on_arrival(unit.key, unit.reason, plan.controls, self._mode):
            case Look():
                pass
            case Refresh() as decision:
                marks.outcome, marks.forward = "refresh", "request"
                return decision
            case Bypass(reason) as decision:
                marks.outcome, marks.forward, marks.reason = "bypass", "bypass", reason
                return decision
            case Fetch() as decision:
                return decision
            case Refuse(reason):
                raise not_cached(reason)
        found, failed = await self._get(unit.key or "", marks)
        match self._looked(plan, found, failed):
            case Serve(entry, age):
                if self._control.withheld.holds(entry):
                    if self._on_held is not None:
                        self._on_held(entry, asked.ask.trace)
                    if plan.controls.only_if_cached or self._mode == "frozen":
                        raise not_cached(Reason.QUARANTINED)
                    marks.outcome, marks.forward, marks.reason = "bypass", "bypass", Reason.QUARANTINED
                    return Bypass(Reason.QUARANTINED)
                marks.outcome, marks.tier = "hit", found.tier if found else None
                marks.age, marks.ttl, marks.verified = age, entry.ttl - age, entry.verified
                marks.environment = entry.environment
                marks.usage = entry.usage
                if self._on_hit is not None:
                    self._on_hit(entry, plan, asked.ask.trace)
                return Given(entry)
            case Fetch() as decision:
                marks.reason = decision.reason
                return decision
            case Refuse(reason):
                raise not_cached(reason, await self._like(plan, unit) if not failed else None)

    async def lacks(self, asked: Asked) -> bool:
        """Whether an entry that may be served is missing for a unit. Nobody is told of those that are there."""
        plan = asked.plan
        for unit in plan.units:
            decision = on_arrival(unit.key, unit.reason, plan.controls, self._mode)
            if isinstance(decision, Look):
                looked = self._looked(plan, *await self._get(unit.key or "", Marks()))
                if isinstance(looked, Fetch):
                    return True
            else:
                return isinstance(decision, Fetch)
        return False

    def _looked(self, plan: Plan, found: Found | None, failed: bool) -> Serve | Fetch | Refuse:
        return after_lookup(
            found.entry if found else None,
            now=self._clock.now(),
            controls=plan.controls,
            mode=self._mode,
            ended=found is not None and self._control.ended(found.entry),
            failed=failed,
        )

    def join(self, key: str, marks: Marks) -> Source | None:
        """A place in the fetch for this key that is under way."""
        joined = self._flights.find(key)
        if joined is None:
            return None
        marks.outcome, marks.forward = "coalesced", "miss"
        recording, follower, marks.leader = joined
        return Coming(recording, follower)

    def begin(self, asked: Asked, units: Sequence[Unit], key: str, marks: Marks) -> Source:
        """A fetch that others may join under this key."""
        marks.outcome = "miss"
        marks.forward = "stale" if marks.reason is Reason.TOO_OLD else "miss"
        question = self._question(asked, units, marks, keep=True)
        recording, follower = self._flights.begin(
            key,
            self._fill(question, key, marks),
            tags=asked.plan.controls.tags,
            tenant=asked.ask.tenant,
            trace=asked.ask.trace,
        )
        return Coming(recording, follower)

    def _fill(self, question: Question, key: str, marks: Marks) -> Fill:
        """What was looked for and simply isn't there is asked for by one process alone."""
        leader = self._leader
        alone = len(question.units) > 1 or question.units[0].key != key
        if leader is None or marks.reason is not None or self._mode != "on" or alone:
            return functools.partial(self._fetcher.fill, question)
        since = self._control.invalidations.since(key, question.plan.controls.tags)
        return functools.partial(leader.fill, question, key=key, since=since)

    def alone(self, asked: Asked, units: Sequence[Unit], marks: Marks, *, keep: bool) -> Source:
        """A fetch for this caller alone; where nothing is kept it ends with the caller."""
        question = msgspec.structs.replace(self._question(asked, units, marks, keep=keep), refresh=keep)
        recording, follower, task = self._flights.alone(lambda recording: self._fetcher.fill(question, recording))
        return Coming(recording, follower, None if keep else task)

    async def _like(self, plan: Plan, unit: Unit) -> Nearest | None:
        if self._nearest is None:
            return None
        return await self._nearest(msgspec.structs.replace(plan, units=(unit,)))

    async def _get(self, key: str, marks: Marks) -> tuple[Found | None, bool]:
        if not self._control.informed:
            return None, True
        began = self._clock.monotonic()
        try:
            return await self._store.get(key), False
        except StoreUnavailable:
            return None, True
        finally:
            marks.lookup = self._clock.monotonic() - began

    def _question(self, asked: Asked, units: Sequence[Unit], marks: Marks, *, keep: bool) -> Question:
        ask, plan = asked.ask, asked.plan
        environment = plan.context.environment
        marks.upstream_started = self._clock.monotonic()
        fields = headers.of_request(ask.headers)
        if ask.trace is not None and ask.trace.traceparent is not None:
            fields = (*fields, ("traceparent", ask.trace.traceparent))
        return Question(
            family=ask.family,
            plan=plan,
            units=tuple(units),
            keep=keep,
            trace=ask.trace,
            call=Call(
                method="POST",
                path=ask.family.path + (f"?{ask.query}" if ask.query else ""),
                body=request.upstream_body(plan, ask.family, units, stream=plan.stream),
                headers=fields,
                model=plan.model,
                environment=environment.id if environment else None,
                route=functools.partial(prompt_prefix, units[0].request, plan.context.salt),
                hedge=keep,
            ),
        )


def not_cached(reason: Reason, like: Nearest | None = None) -> ProxyError:
    """504 for `only-if-cached` and the frozen mode (RFC 9111 section 5.2.1.7); names the nearest entry there is."""
    return ProxyError(
        504,
        f"the answer is not in the cache ({reason}) and the upstream may not be asked{told(like)}",
        code="not_cached",
        reason=reason,
        kind="not_cached_error",
    )
