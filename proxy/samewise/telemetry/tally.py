"""Counting, as cheap as it gets: plain integers, one dictionary look-up a request, nothing shared, no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from samewise.core.answer import Usage
from samewise.ports import RECORDED, Outcome, Record, Tier
from samewise.telemetry.instruments import AGES, BOUNDS
from samewise.telemetry.snapshot import Attributes, Buckets, Exemplar, Number, Snapshot

OTHER = "other"
LONGEST = 128
"""Characters of a name that becomes a label."""
_OPERATIONS = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_ASKED = frozenset({"miss", "refresh", "bypass"})
_ERROR = 400

Source = Callable[[], Iterable[Number]]


class Names:
    """The first `limit` names are kept; all that come later, and those that are too long, are `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def bound(self, name: str, *, admit: bool = True) -> str:
        """The name, or `other`. What was refused (`admit` False) can't take a place from what was answered."""
        if name in self._known:
            return name
        if name and admit and len(name) <= LONGEST and len(self._known) < self._limit:
            self._known.add(name)
            return name
        return OTHER


class Histogram:
    """Counts by bucket. `bounds` are the upper ends, inclusive."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, value: float) -> int:
        """Returns the bucket that it fell into."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value
        return place

    def buckets(self, name: str, attributes: Attributes) -> Buckets:
        return Buckets(name, attributes, self.bounds, tuple(self.counts), self.total, dict(self.exemplars))


class Series:
    """All that is counted of requests of one endpoint, model, outcome and tier."""

    __slots__ = ("age", "cached", "completion", "count", "duration", "first", "lookup")

    def __init__(self) -> None:
        self.count = 0
        self.completion = 0
        self.cached = 0
        self.duration = Histogram()
        self.lookup = Histogram()
        self.first = Histogram()
        self.age = Histogram(AGES)

    def hit(self, duration: float, age: float, usage: Usage, lookup: float) -> None:
        """A hit whose first byte was its last; for the lane that holds this series."""
        self.count += 1
        self.completion += usage.completion_tokens
        self.cached += usage.cached_tokens
        place = self.duration.add(duration)
        self.first.counts[place] += 1
        self.first.total += duration
        self.age.add(age)
        self.lookup.add(lookup)


class Tallies:
    """Everything that is counted in one process."""

    def __init__(self, *, models: int = 100, endpoints: int = 32, sources: Iterable[Source] = ()) -> None:
        self._models = Names(models)
        self._endpoints = Names(endpoints)
        self._series: dict[tuple[str, str, Outcome, Tier | None], Series] = {}
        self._bounded: dict[tuple[str, str, Outcome, Tier | None], Series] = {}
        self._reasons: dict[str, int] = {}
        self._counters: dict[tuple[str, Attributes], float] = {}
        self._gauges: dict[tuple[str, Attributes], float] = {}
        self._sources = tuple(sources)

    def series(
        self, endpoint: str, model: str, outcome: Outcome, tier: Tier | None = None, *, admit: bool = True
    ) -> Series:
        """Where requests of this kind are counted; may be held on to."""
        found = self._series.get((endpoint, model, outcome, tier))
        if found is None:
            place = (
                self._endpoints.bound(endpoint),
                self._models.bound(model, admit=admit),
                outcome,
                tier if outcome == "hit" else None,
            )
            found = self._bounded.setdefault(place, Series())
            if place[:2] == (endpoint, model):
                self._series[(endpoint, model, outcome, tier)] = found
        return found

    def record(self, record: Record, span: tuple[str, str] | None = None, at: float = 0.0) -> None:
        """Count one request. With the ids of a sampled trace and of its span, its duration becomes an exemplar."""
        series = self._series.get((record.endpoint, record.model, record.outcome, record.tier))
        if series is None:
            admit = record.status < _ERROR
            series = self.series(record.endpoint, record.model, record.outcome, record.tier, admit=admit)
        series.count += 1
        usage = record.usage
        series.completion += usage.completion_tokens
        series.cached += usage.cached_tokens
        place = series.duration.add(record.duration)
        if span is not None:
            trace_id, span_id = span
            series.duration.exemplars[place] = Exemplar(record.duration, trace_id, at, span_id)
        if record.first_byte is not None:
            series.first.add(record.first_byte)
        if record.lookup is not None:
            series.lookup.add(record.lookup)
        if record.age is not None:
            series.age.add(record.age)
        if record.reason is not None:
            self._reasons[record.reason] = self._reasons.get(record.reason, 0) + 1

    def count(self, name: str, value: float = 1, **attributes: str) -> None:
        """Advance a counter. Attributes without a value are left out."""
        place = (name, _attributes(attributes))
        self._counters[place] = self._counters.get(place, 0) + value

    def set(self, name: str, value: float, **attributes: str) -> None:
        """What a gauge is now."""
        self._gauges[(name, _attributes(attributes))] = value

    def shift(self, name: str, change: float) -> None:
        """A gauge went up or down."""
        place = (name, ())
        self._gauges[place] = self._gauges.get(place, 0) + change

    def outcomes(self) -> dict[str, int]:
        """Requests so far by outcome."""
        counts: dict[str, int] = {}
        for (_, _, outcome, _), series in self._bounded.items():
            counts[outcome] = counts.get(outcome, 0) + series.count
        return counts

    def seconds(self) -> dict[str, float]:
        """What requests took so far, all together, by outcome."""
        sums: dict[str, float] = {}
        for (_, _, outcome, _), series in self._bounded.items():
            sums[outcome] = sums.get(outcome, 0.0) + series.duration.total
        return sums

    def snapshot(self) -> Snapshot:
        """All of it now, and what the sources say."""
        numbers = _Sums()
        histograms = _Merged()
        for (endpoint, model, outcome, tier), series in self._bounded.items():
            labels = _attributes({"endpoint": endpoint, "model": model, "outcome": outcome, "tier": tier or ""})
            numbers.add("samewise.requests", labels, series.count)
            kind = "generated" if outcome not in RECORDED else "saved"
            numbers.add("samewise.tokens", (("kind", kind),), series.completion)
            if outcome not in RECORDED:
                numbers.add("samewise.tokens", (("kind", "prefix_cached"),), series.cached)
            by_outcome = (("outcome", outcome),)
            histograms.add("samewise.lookup.duration", by_outcome, series.lookup)
            histograms.add("samewise.request.duration", by_outcome, series.duration)
            histograms.add("samewise.time_to_first_token", by_outcome, series.first)
            histograms.add("samewise.entry.age", (), series.age)
            if outcome in _ASKED and endpoint in _OPERATIONS:
                semantic = (("gen_ai.operation.name", _OPERATIONS[endpoint]), ("gen_ai.request.model", model))
                histograms.add("gen_ai.server.request.duration", semantic, series.duration)
                histograms.add("gen_ai.server.time_to_first_token", semantic, series.first)
        for reason, count in self._reasons.items():
            numbers.add("samewise.uncached", (("reason", reason),), count)
        for (name, attributes), value in (*self._counters.items(), *self._gauges.items()):
            numbers.add(name, attributes, value)
        for source in self._sources:
            for number in source():
                numbers.add(number.name, number.attributes, number.value)
        return Snapshot(numbers.done(), histograms.done())


class _Sums:
    def __init__(self) -> None:
        self._values: dict[tuple[str, Attributes], float] = {}

    def add(self, name: str, attributes: Attributes, value: float) -> None:
        self._values[(name, attributes)] = self._values.get((name, attributes), 0) + value

    def done(self) -> tuple[Number, ...]:
        return tuple(Number(name, attributes, value) for (name, attributes), value in self._values.items())


class _Merged:
    def __init__(self) -> None:
        self._histograms: dict[tuple[str, Attributes], Histogram] = {}

    def add(self, name: str, attributes: Attributes, histogram: Histogram) -> None:
        if not any(histogram.counts):
            return
        into = self._histograms.setdefault((name, attributes), Histogram(histogram.bounds))
        into.counts = [one + other for one, other in zip(into.counts, histogram.counts, strict=True)]
        into.total += histogram.total
        into.exemplars |= histogram.exemplars

    def done(self) -> tuple[Buckets, ...]:
        return tuple(item.buckets(name, attributes) for (name, attributes), item in self._histograms.items())


def _attributes(attributes: dict[str, str]) -> Attributes:
    return tuple((name, value) for name, value in attributes.items() if value)
