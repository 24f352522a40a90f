"""One source, given to one caller in the form that it asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from samewise.core.answer import Answer, Event, Headers, Usage
from samewise.core.decide import Discard, Keep
from samewise.core.errors import ProxyError
from samewise.core.families.contract import Family
from samewise.core.plan import Plan
from samewise.core.reason import Reason
from samewise.pipeline.account import Marks
from samewise.pipeline.source import Coming, Given, Live, Reply, Source, as_body, as_events, fields_of, typed
from samewise.ports import Clock, UpstreamFailed


async def make(family: Family, plan: Plan, source: Source, marks: Marks, clock: Clock) -> Reply:
    """The reply. Raises ProxyError 502 or 504 where the upstream gave nothing whole."""
    match source:
        case Given(entry):
            return whole(family, plan, entry.answer, entry.answer.headers, (source,))
        case Coming():
            try:
                return await _coming(family, plan, source, marks, clock)
            except UpstreamFailed as failure:
                source.leave()
                raise upstream_error(failure) from failure
            except BaseException:
                source.leave()
                raise


async def _coming(family: Family, plan: Plan, source: Coming, marks: Marks, clock: Clock) -> Reply:
    head = await source.follower.begun()
    if source.recording.borrowed:
        marks.outcome = "coalesced"
    marks.environment = head.environment or marks.environment
    marks.member, marks.answered = head.member, head.status
    first = marks.outcome != "coalesced"
    if (plan.stream or plan.relayed) and head.streaming and head.status == 200:
        live = Live(_bursts(family, plan, source, marks, clock), family.cut)
        return Reply(status=200, headers=fields_of(head, first=first), live=live, sources=(source,))
    answer = await settled(family, source, marks, clock)
    fields = fields_of(source.recording.head or head, first=first)
    if not plan.stream and answer.form == "sse" and failure_of(source) is not None:
        raise truncated()
    if answer.status != 200 or (answer.form == "json" and failure_of(source) is not None):
        return Reply(status=answer.status, headers=fields, body=answer.body, sources=(source,))
    return whole(family, plan, answer, fields, (source,))


async def settled(family: Family, source: Source, marks: Marks, clock: Clock) -> Answer:
    """The whole answer of a source. Raises UpstreamFailed."""
    match source:
        case Given(entry):
            return entry.answer
        case Coming(recording, follower):
            head = await follower.begun()
            if recording.borrowed:
                marks.outcome = "coalesced"
            marks.answered = head.status
            answer = await follower.settled()
            marks.environment, marks.member = head.environment or marks.environment, head.member
            if marks.upstream_started is not None:
                marks.upstream = clock.monotonic() - marks.upstream_started
            if recording.storing is not None and marks.outcome != "coalesced":
                marks.store_started, marks.store = recording.storing
            marks.usage = family.usage(answer) if answer.status == 200 else Usage()
            match recording.decision:
                case Keep(ttl):
                    marks.stored = marks.outcome != "coalesced"
                    marks.ttl = ttl
                case Discard(reason) if marks.outcome != "bypass":
                    marks.reason = reason
                case _:
                    pass
            return answer


def failure_of(source: Coming) -> Reason | None:
    """Why the answer is not whole, None where it is."""
    match source.recording.decision:
        case Discard(Reason.TRUNCATED | Reason.UPSTREAM_ERROR as reason):
            return reason
        case _:
            return None


async def _bursts(
    family: Family, plan: Plan, source: Coming, marks: Marks, clock: Clock
) -> AsyncIterator[Sequence[Event]]:
    async for burst in source.follower.bursts():
        if seen := family.visible(burst, plan.include_usage):
            yield seen
    await settled(family, source, marks, clock)


def whole(family: Family, plan: Plan, answer: Answer, fields: Headers, sources: tuple[Source, ...]) -> Reply:
    """An answer that is all there, as a body or as events."""
    fields = typed(fields, answer, stream=plan.stream)
    if plan.stream:
        events = as_events(family, answer, include_usage=plan.include_usage)
        return Reply(status=200, headers=fields, recorded=events, sources=sources, plan=plan)
    return Reply(status=answer.status, headers=fields, body=as_body(family, answer), sources=sources, plan=plan)


def truncated() -> ProxyError:
    """502 for a caller that wanted a body, and whose answer ended before it was whole."""
    return ProxyError(
        502,
        "the upstream's stream ended before its answer was whole; ask again",
        code="upstream_truncated",
        reason=Reason.TRUNCATED,
    )


def upstream_error(failure: UpstreamFailed) -> ProxyError:
    """502 or 504 for an upstream that gave no whole answer."""
    if failure.kind == "timeout":
        return ProxyError(504, f"{failure}", code="upstream_timeout", reason=Reason.UPSTREAM_TIMEOUT)
    if failure.kind == "cut":
        return ProxyError(502, f"{failure}", code="upstream_truncated", reason=Reason.TRUNCATED)
    return ProxyError(502, f"{failure}", code="upstream_unreachable", reason=Reason.UPSTREAM_UNREACHABLE)
