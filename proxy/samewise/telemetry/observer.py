"""The observer that the house talks to: counts, traces, remembers and logs, and never changes an outcome."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import msgspec

from samewise.ports import Clock, Notice, Record, Repeat, Trace
from samewise.telemetry import prometheus
from samewise.telemetry.log import Log
from samewise.telemetry.recent import Rates, Recent
from samewise.telemetry.snapshot import Snapshot
from samewise.telemetry.tally import Names, Tallies
from samewise.telemetry.tracing import Span, Untraced

_COUNTED = {
    "verification": ("samewise.verifications", ("verdict", "environment")),
    "verify-dropped": ("samewise.verify.dropped", ()),
    "store-error": ("samewise.store.errors", ("tier", "error")),
    "store-eviction": ("samewise.store.evictions", ("tier",)),
    "invalidation": ("samewise.invalidations", ("scope",)),
    "tokens": ("samewise.tokens", ("kind",)),
}
_SET = {"consistency": ("samewise.consistency.ratio", ("environment",))}
_QUIET = frozenset({"tokens", "store-eviction", "verify-dropped", "consistency"})
_INVALIDATE = "invalidate"
_FAILED = 500


class Tracing(Protocol):
    """Begins and ends the trace of a request."""

    def begin(self, headers: Mapping[str, str], name: str) -> Span: ...

    def finish(self, trace: Trace, record: Record) -> None: ...

    def verified(self, notice: Notice) -> None: ...


class Closing(Protocol):
    """Something that may have to send what it still has, in at most so many seconds."""

    def close(self, timeout: float) -> None: ...


class Telemetry:
    """An Observer. For one event loop; `snapshot` may be called from another thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        log: Log,
        tallies: Tallies | None = None,
        tracing: Tracing | None = None,
        recent: Recent | None = None,
    ) -> None:
        self._clock = clock
        self._log = log
        self._tracing: Tracing = tracing or Untraced()
        self._closing: list[Closing] = []
        self._kinds = Names(64)
        self._values = Names(1000)
        self._consistency: dict[str, dict[str, int]] = {}
        self.tallies = tallies or Tallies()
        self.recent = recent or Recent(clock)
        self.rates = Rates(clock, self.tallies.outcomes)

    # --- what the house tells -------------------------------------------------------------------------

    def begin(self, headers: Mapping[str, str], name: str) -> Trace:
        return self._tracing.begin(headers, name)

    def finish(self, trace: Trace, record: Record) -> None:
        if isinstance(trace, Span) and trace.sampled and trace.trace_id is not None:
            self.tallies.record(record, (trace.trace_id, trace.span_id), self._clock.now())
            self._tracing.finish(trace, record)
        else:
            self.tallies.record(record)
        self.recent.add(record if record.content is None else msgspec.structs.replace(record, content=None))
        self.rates.look(record.started + record.duration)
        if record.status >= _FAILED:
            self._failed(trace, record)
        if self._log.verbose:
            self._tell(trace, record)

    def repeats(self, record: Record) -> Repeat | None:
        if self._log.verbose or not isinstance(self._tracing, Untraced):
            return None
        series = self.tallies.series(record.endpoint, record.model, record.outcome, record.tier)
        usage, look, remember = record.usage, self.rates.look, self.recent.again

        def repeat(request_id: str, started: float, duration: float, age: float, lookup: float) -> None:
            series.hit(duration, age, usage, lookup)
            remember(record, request_id, started, duration, age, lookup=lookup)
            look(started)

        return repeat

    def notice(self, notice: Notice) -> None:
        kind, attributes = notice.kind, notice.attributes
        if kind in _COUNTED:
            name, wanted = _COUNTED[kind]
            self.tallies.count(name, notice.value, **self._bounded(attributes, wanted))
        elif kind in _SET:
            name, wanted = _SET[kind]
            self.tallies.set(name, notice.value, **self._bounded(attributes, wanted))
            self._consistency[self._values.bound(attributes.get("environment", ""))] = dict(notice.detail)
        elif kind == "control" and attributes.get("kind") == _INVALIDATE:
            scope = str(notice.detail.get("subject", ""))
            self.tallies.count("samewise.invalidations", scope=self._values.bound(scope))
        elif kind == "control":
            self.tallies.count("samewise.changes", kind=self._kinds.bound(attributes.get("kind", "")))
        else:
            self.tallies.count("samewise.events", notice.value, kind=self._kinds.bound(kind))
        if kind == "verification":
            self._tracing.verified(notice)
        self.recent.notice(notice)
        self._log_notice(notice)

    def gauge(self, name: str, change: int) -> None:
        self.tallies.shift(f"samewise.{name}", change)

    # --- what operators ask ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """All metrics of this process."""
        return self.tallies.snapshot()

    def prometheus(self, accept: str | None = None) -> tuple[bytes, str]:
        """The exposition and its content type; OpenMetrics with exemplars for those whose Accept asks for it."""
        content_type = prometheus.negotiate(accept)
        return prometheus.exposition(self.snapshot(), content_type), content_type

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens from now on, as JSON values."""
        async with contextlib.aclosing(self.recent.subscribe()) as happening:
            async for happened in happening:
                yield happened.plain()

    def status(self) -> dict[str, Any]:
        """Totals since the start and rates of the last minute, as JSON values."""
        outcomes = self.tallies.outcomes()
        rates = self.rates.last_minute()
        snapshot = self.snapshot()
        kinds = ("generated", "saved", "prefix_cached", "verified")
        return {
            "requests": outcomes,
            "rate": {outcome: round(rate, 3) for outcome, rate in rates.items()},
            "hit_ratio": hit_ratio(outcomes),
            "hit_ratio_last_minute": hit_ratio(rates),
            "seconds": {outcome: round(total, 6) for outcome, total in self.tallies.seconds().items()},
            "tokens": {kind: int(snapshot.value("samewise.tokens", kind=kind)) for kind in kinds},
            "consistency": dict(self._consistency),
            "inflight": int(snapshot.value("samewise.inflight")),
            "verifications": {
                dict(number.attributes).get("verdict", ""): int(number.value)
                for number in snapshot.numbers
                if number.name == "samewise.verifications"
            },
        }

    # --- the end --------------------------------------------------------------------------------------

    def closes(self, closing: Closing) -> None:
        """Have this closed with the rest."""
        self._closing.append(closing)

    def close(self, grace: float) -> None:
        """Send what is left; blocks for at most `grace` seconds, whatever the collector does."""
        threads = [threading.Thread(target=item.close, args=(grace,), daemon=True) for item in self._closing]
        for thread in threads:
            thread.start()
        end = self._clock.monotonic() + grace
        for thread in threads:
            thread.join(max(0.0, end - self._clock.monotonic()))

    # --- inside ---------------------------------------------------------------------------------------

    def _bounded(self, attributes: Mapping[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
        return {name: self._values.bound(attributes[name]) for name in wanted if attributes.get(name)}

    def _tell(self, trace: Trace, record: Record) -> None:
        self._log.debug("request", **_told(trace, record))

    def _failed(self, trace: Trace, record: Record) -> None:
        """Failures are told once an interval for each reason, with the trace of one of them."""
        self._log.seldom(f"failed {record.status} {record.reason}", "a request failed", **_told(trace, record))

    def _log_notice(self, notice: Notice) -> None:
        fields = {**notice.attributes, **notice.detail}
        match notice.kind:
            case kind if kind in _QUIET:
                return
            case "verification":
                self._verified(notice.attributes.get("verdict"), fields)
            case "store-error":
                what = "store-error {tier} {error}".format_map({"tier": "", "error": "", **notice.attributes})
                self._log.seldom(what, "a store can't be asked; upstreams answer meanwhile", **fields)
            case "control-skipped":
                self._log.warning("an event of the journal can't be applied and is left out", **fields)
            case kind:
                self._log.info(kind, **fields)

    def _verified(self, verdict: str | None, fields: dict[str, Any]) -> None:
        """What came to nothing is told once an interval: an upstream that is full makes many of them."""
        if verdict == "inconclusive" and fields.get("outcome") != "flaky":
            self._log.seldom("inconclusive", "a recomputation came to nothing", **fields)
        elif verdict != "match":
            self._log.warning("a recomputation did not agree", **fields)


def _told(trace: Trace, record: Record) -> dict[str, Any]:
    return {
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "model": record.model,
        "cache": record.outcome,
        "reason": record.reason,
        "status": record.status,
        "duration_ms": round(record.duration * 1000, 3),
        "trace_id": trace.trace_id,
        "span_id": trace.span_id if isinstance(trace, Span) and trace.span_id else None,
    }


def hit_ratio(outcomes: Mapping[str, float]) -> float | None:
    """Answers that took no upstream call of their own, of all that could have."""
    saved = outcomes.get("hit", 0) + outcomes.get("coalesced", 0)
    all_of_them = saved + outcomes.get("miss", 0) + outcomes.get("refresh", 0)
    return round(saved / all_of_them, 6) if all_of_them else None
