"""A snapshot as Prometheus reads it: text format 0.0.4, or OpenMetrics 1.0 with exemplars."""

from __future__ import annotations

from collections.abc import Iterator

from samewise.telemetry.instruments import INSTRUMENTS, Instrument
from samewise.telemetry.snapshot import Attributes, Buckets, Exemplar, Number, Snapshot

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_UNITS = {"s": "_seconds", "By": "_bytes"}


def negotiate(accept: str | None) -> str:
    """The content type to answer with: OpenMetrics only for those who ask for it."""
    return OPENMETRICS if accept and "application/openmetrics-text" in accept else TEXT


def exposition(snapshot: Snapshot, content_type: str = TEXT) -> bytes:
    """Every metric of the snapshot; exemplars are in OpenMetrics alone."""
    openmetrics = content_type.startswith("application/openmetrics-text")
    numbers: dict[str, list[Number]] = {}
    for number in snapshot.numbers:
        numbers.setdefault(number.name, []).append(number)
    histograms: dict[str, list[Buckets]] = {}
    for buckets in snapshot.histograms:
        histograms.setdefault(buckets.name, []).append(buckets)
    lines: list[str] = []
    for name, instrument in INSTRUMENTS.items():
        if name not in numbers and name not in histograms:
            continue
        family = metric_name(instrument)
        suffix = "_total" if instrument.kind == "counter" else ""
        headed = family if openmetrics else family + suffix
        lines += [f"# HELP {headed} {instrument.description}", f"# TYPE {headed} {instrument.kind}"]
        lines += [f"{family}{suffix}{_labels(n.attributes)} {_value(n.value)}" for n in numbers.get(name, ())]
        for item in histograms.get(name, ()):
            lines += _histogram(family, item, openmetrics)
    if openmetrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def metric_name(instrument: Instrument) -> str:
    """`samewise_lookup_duration_seconds` for `samewise.lookup.duration` in s; without `_total`."""
    name = instrument.name.replace(".", "_")
    unit = _UNITS.get(instrument.unit, "")
    return name if name.endswith(unit) else name + unit


def _histogram(family: str, item: Buckets, openmetrics: bool) -> Iterator[str]:
    running = 0
    for place, count in enumerate(item.counts):
        running += count
        end = _value(item.bounds[place]) if place < len(item.bounds) else "+Inf"
        mark = _exemplar(item.exemplars.get(place)) if openmetrics else ""
        yield f"{family}_bucket{_labels((*item.attributes, ('le', end)))} {running}{mark}"
    yield f"{family}_sum{_labels(item.attributes)} {_value(item.total)}"
    yield f"{family}_count{_labels(item.attributes)} {running}"


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.trace_id}"}} {_value(exemplar.value)} {exemplar.at:.3f}'


def _labels(attributes: Attributes) -> str:
    if not attributes:
        return ""
    inner = ",".join(f'{name.replace(".", "_")}="{_escape(value)}"' for name, value in attributes)
    return "{" + inner + "}"


def _escape(value: str) -> str:
    clean = value.encode("utf-8", "replace").decode()
    return clean.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _value(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
