"""The one path of a request: plan, look, share or ask, reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import xxhash

from samewise.core import canonical, headers, request
from samewise.core.answer import Answer, Event, Headers, Usage
from samewise.core.controls import Controls
from samewise.core.decide import (
    Bypass,
    Discard,
    Fetch,
    Keep,
    Look,
    Mode,
    Refresh,
    Refuse,
    Serve,
    after_lookup,
    on_arrival,
)
from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.core.families.contract import Family
from samewise.core.plan import Plan, Unit
from samewise.core.reason import Reason
from samewise.pipeline.account import Account
from samewise.pipeline.control import Control
from samewise.pipeline.fetch import Fetcher, Question
from samewise.pipeline.flight import Flights
from samewise.pipeline.recording import Recording
from samewise.pipeline.source import (
    Coming,
    Given,
    Reply,
    Source,
    as_body,
    as_events,
    fields_of,
    incomplete,
    replay,
    typed,
)
from samewise.ports import Call, Clock, Found, Store, StoreUnavailable, UpstreamFailed


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the door hands it over: `value` is the parsed `raw` body; names of `headers` are lower case."""

    family: Family
    raw: bytes
    value: dict[str, Any]
    headers: Headers
    controls: Controls
    tenant: str
    query: str = ""


class Answerer:
    """Answers requests of the cached families. `on_hit` is told of every entry that is served."""

    def __init__(
        self,
        *,
        store: Store,
        fetcher: Fetcher,
        flights: Flights,
        control: Control,
        clock: Clock,
        mode: Mode,
        on_hit: Callable[[Entry, Plan], None] | None = None,
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._flights = flights
        self._control = control
        self._clock = clock
        self._mode = mode
        self._on_hit = on_hit

    def plan(self, ask: Ask) -> Plan:
        """What the request means now. Raises ProxyError where it means nothing."""
        model = ask.value.get("model")
        context = self._control.context(
            ask.tenant,
            model if isinstance(model, str) else "",
            lambda: xxhash.xxh3_128_digest(canonical.encode(ask.value)),
        )
        return request.plan(ask.family, ask.value, ask.raw, ask.controls, context, query=ask.query)

    async def answer(self, ask: Ask, account: Account) -> Reply:
        """The reply to one request. Raises ProxyError where there is none to give."""
        plan = self.plan(ask)
        account.model = plan.model
        account.stream = plan.stream
        account.snapshot = plan.context.snapshot.label()
        if plan.context.environment is not None:
            account.environment = plan.context.environment.id
        unit = plan.units[0]
        account.key = unit.key
        account.seed = unit.seed if unit.pinned else None
        source = await self._resolve(ask, plan, unit, account)
        return await self._reply(ask.family, plan, source, account)

    # --- where the answer comes from ------------------------------------------------------------------

    async def _resolve(self, ask: Ask, plan: Plan, unit: Unit, account: Account) -> Source:
        match on_arrival(unit.key, unit.reason, plan.controls, self._mode):
            case Look():
                return await self._look(ask, plan, unit, account)
            case Fetch():
                return self._share(ask, plan, unit, account) or self._begin(ask, plan, unit, account)
            case Refresh():
                account.outcome, account.forward = "refresh", "request"
                return self._alone(ask, plan, unit, account, keep=True)
            case Bypass(reason):
                account.outcome, account.forward, account.reason = "bypass", "bypass", reason
                return self._alone(ask, plan, unit, account, keep=False)
            case Refuse(reason):
                raise not_cached(reason)

    async def _look(self, ask: Ask, plan: Plan, unit: Unit, account: Account) -> Source:
        """Look, then join or begin. What landed while we looked is looked for once more."""
        key = unit.key or ""
        for last in (False, True):
            landed = self._flights.landed
            found, failed = await self._lookup(key, account)
            decision = after_lookup(
                found.entry if found else None,
                now=self._clock.now(),
                controls=plan.controls,
                mode=self._mode,
                ended=found is not None and self._control.ended(found.entry),
                failed=failed,
            )
            match decision:
                case Serve(entry, age):
                    account.outcome, account.tier = "hit", found.tier if found else None
                    account.age, account.ttl, account.verified = age, entry.ttl - age, entry.verified
                    account.environment = entry.environment
                    account.seed = entry.seed if unit.pinned else None
                    account.usage = entry.usage
                    if self._on_hit is not None:
                        self._on_hit(entry, plan)
                    return Given(entry)
                case Refuse(reason):
                    raise not_cached(reason)
                case Fetch(reason):
                    account.reason = reason
                    if (joined := self._share(ask, plan, unit, account)) is not None:
                        return joined
                    if last or self._flights.landed == landed:
                        return self._begin(ask, plan, unit, account)
        raise AssertionError("unreachable")

    async def _lookup(self, key: str, account: Account) -> tuple[Found | None, bool]:
        began = self._clock.monotonic()
        try:
            return await self._store.get(key), False
        except StoreUnavailable:
            return None, True
        finally:
            account.lookup = self._clock.monotonic() - began

    def _share(self, ask: Ask, plan: Plan, unit: Unit, account: Account) -> Source | None:
        joined = self._flights.find(unit.key or "")
        if joined is None:
            return None
        account.outcome, account.forward = "coalesced", "miss"
        recording, follower, account.leader = joined
        return Coming(recording, follower)

    def _begin(self, ask: Ask, plan: Plan, unit: Unit, account: Account) -> Source:
        account.outcome = "miss"
        account.forward = "stale" if account.reason is Reason.TOO_OLD else "miss"
        question = self._question(ask, plan, unit, account, keep=True)
        recording, follower = self._flights.begin(
            unit.key or "",
            lambda recording: self._fetcher.fill(question, recording),
            tags=plan.controls.tags,
            trace=account.trace,
        )
        return Coming(recording, follower)

    def _alone(self, ask: Ask, plan: Plan, unit: Unit, account: Account, *, keep: bool) -> Source:
        question = self._question(ask, plan, unit, account, keep=keep)
        recording, follower, task = self._flights.alone(lambda recording: self._fetcher.fill(question, recording))
        return Coming(recording, follower, None if keep else task)

    def _question(self, ask: Ask, plan: Plan, unit: Unit, account: Account, *, keep: bool) -> Question:
        environment = plan.context.environment
        account.upstream_started = self._clock.monotonic()
        fields = headers.of_request(ask.headers)
        if account.trace.traceparent is not None:
            fields = (*fields, ("traceparent", account.trace.traceparent))
        return Question(
            family=ask.family,
            plan=plan,
            unit=unit,
            keep=keep,
            call=Call(
                method="POST",
                path=ask.family.path + (f"?{ask.query}" if ask.query else ""),
                body=request.upstream_body(plan, ask.family, unit, stream=plan.stream),
                headers=fields,
                model=plan.model,
                environment=environment.id if environment else None,
            ),
        )

    # --- how it is given ------------------------------------------------------------------------------

    async def _reply(self, family: Family, plan: Plan, source: Source, account: Account) -> Reply:
        match source:
            case Given(entry):
                return _whole(family, plan, entry.answer, entry.answer.headers, (source,))
            case Coming(recording, follower, _):
                try:
                    return await self._coming(family, plan, source, account)
                except UpstreamFailed as failure:
                    source.leave()
                    raise upstream_error(failure) from failure
                except BaseException:
                    source.leave()
                    raise

    async def _coming(self, family: Family, plan: Plan, source: Coming, account: Account) -> Reply:
        first = account.outcome != "coalesced"
        head = await source.follower.begun()
        account.environment = head.environment or account.environment
        account.member = head.member
        fields = fields_of(head, first=first)
        if plan.stream and head.streaming and head.status == 200:
            live = self._live(family, plan, source, account)
            return Reply(status=200, headers=fields, events=live, sources=(source,))
        answer = await source.follower.settled()
        self._settle(family, source.recording, answer, account)
        failed = source.recording.decision.reason if isinstance(source.recording.decision, Discard) else None
        if not plan.stream and incomplete(answer, failed):
            raise ProxyError(
                502,
                "the upstream's stream ended before its answer was whole; ask again",
                code="upstream_truncated",
                reason=Reason.TRUNCATED,
            )
        if answer.status != 200 or (plan.stream and failed is Reason.UPSTREAM_ERROR):
            return Reply(status=answer.status, headers=fields, body=answer.body, sources=(source,))
        return _whole(family, plan, answer, fields, (source,))

    async def _live(self, family: Family, plan: Plan, source: Coming, account: Account) -> AsyncIterator[Event]:
        async for event in source.follower.events():
            seen = family.visible(event, plan.include_usage)
            if seen is not None:
                yield seen
        if source.recording.answer is not None:
            self._settle(family, source.recording, source.recording.answer, account)

    def _settle(self, family: Family, recording: Recording, answer: Answer, account: Account) -> None:
        if account.upstream_started is not None:
            account.upstream = self._clock.monotonic() - account.upstream_started
        account.usage = family.usage(answer) if answer.status == 200 else Usage()
        match recording.decision:
            case Keep(ttl):
                account.stored = account.outcome != "coalesced"
                account.ttl = ttl
            case Discard(reason) if account.outcome != "bypass":
                account.reason = reason
            case _:
                pass


def _whole(family: Family, plan: Plan, answer: Answer, fields: Headers, sources: tuple[Source, ...]) -> Reply:
    fields = typed(fields, answer, stream=plan.stream)
    if plan.stream:
        events = as_events(family, answer, include_usage=plan.include_usage)
        return Reply(status=200, headers=fields, events=replay(events), sources=sources)
    return Reply(status=answer.status, headers=fields, body=as_body(family, answer), sources=sources)


def not_cached(reason: Reason) -> ProxyError:
    """504 for `only-if-cached` and the frozen mode (RFC 9111 section 5.2.1.7)."""
    return ProxyError(
        504,
        f"the answer is not in the cache ({reason}) and the upstream may not be asked",
        code="not_cached",
        reason=reason,
        kind="not_cached_error",
    )


def upstream_error(failure: UpstreamFailed) -> ProxyError:
    """502 or 504 for an upstream that gave no whole answer."""
    if failure.kind == "timeout":
        return ProxyError(504, f"{failure}", code="upstream_timeout", reason=Reason.UPSTREAM_TIMEOUT)
    if failure.kind == "cut":
        return ProxyError(502, f"{failure}", code="upstream_truncated", reason=Reason.TRUNCATED)
    return ProxyError(502, f"{failure}", code="upstream_unreachable", reason=Reason.UPSTREAM_UNREACHABLE)
