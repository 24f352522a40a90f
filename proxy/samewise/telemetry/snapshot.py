"""All metrics at one moment, as plain values: what workers add up, and what is exposed or exported."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from samewise.telemetry.instruments import INSTRUMENTS

Attributes = tuple[tuple[str, str], ...]


class Exemplar(msgspec.Struct, frozen=True, array_like=True):
    """One measurement of a bucket, with the span that it belongs to; `at` is in seconds since the epoch."""

    value: float
    trace_id: str
    at: float
    span_id: str


class Number(msgspec.Struct, frozen=True, array_like=True):
    """A counter or a gauge under one set of attributes."""

    name: str
    attributes: Attributes
    value: float


class Buckets(msgspec.Struct, frozen=True, array_like=True):
    """A histogram under one set of attributes. `counts` has one more than `bounds`; they are not cumulative."""

    name: str
    attributes: Attributes
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    exemplars: dict[int, Exemplar] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """Can be sent between processes as msgpack or JSON."""

    numbers: tuple[Number, ...] = ()
    histograms: tuple[Buckets, ...] = ()

    def value(self, name: str, **attributes: str) -> float:
        """The sum of a counter or gauge over everything that has these attributes."""
        wanted = {(label.replace("__", "."), value) for label, value in attributes.items()}
        return sum(number.value for number in self.numbers if number.name == name and wanted <= set(number.attributes))


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One view of several workers. What is shared by all of them (a store's entries) is not counted twice."""
    numbers: dict[tuple[str, Attributes], Number] = {}
    histograms: dict[tuple[str, Attributes], Buckets] = {}
    for snapshot in snapshots:
        for number in snapshot.numbers:
            place = (number.name, number.attributes)
            known = numbers.get(place)
            numbers[place] = number if known is None else _both(known, number)
        for buckets in snapshot.histograms:
            place = (buckets.name, buckets.attributes)
            before = histograms.get(place)
            histograms[place] = buckets if before is None else _sum(before, buckets)
    return Snapshot(tuple(numbers.values()), tuple(histograms.values()))


def _both(one: Number, other: Number) -> Number:
    how = INSTRUMENTS[one.name].merge
    if one.name in ("samewise.store.entries", "samewise.store.bytes") and ("tier", "memory") not in one.attributes:
        how = "max"
    match how:
        case "sum":
            value = one.value + other.value
        case "max":
            value = max(one.value, other.value)
        case "min":
            value = min(one.value, other.value)
    return Number(one.name, one.attributes, value)


def _sum(one: Buckets, other: Buckets) -> Buckets:
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    exemplars = dict(one.exemplars)
    for place, exemplar in other.exemplars.items():
        if place not in exemplars or exemplars[place].at < exemplar.at:
            exemplars[place] = exemplar
    return Buckets(one.name, one.attributes, one.bounds, counts, one.total + other.total, exemplars)
