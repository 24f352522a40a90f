"""What is counted adds up, stays bounded, and reads the same in Prometheus and in OpenTelemetry's model."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from samewise.core.answer import Usage
from samewise.ports import Member, Notice, Record, StoreStatus
from samewise.telemetry import Snapshot, Tallies, Telemetry, exposition, merge, stores, upstreams
from samewise.telemetry.otlp import metrics_data, resource
from samewise.telemetry.prometheus import OPENMETRICS
from tests.support.clock import ManualClock

Make = Callable[..., Record]
OUTCOMES = ("hit", "miss", "coalesced", "bypass", "refresh", "error")


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def total(text: bytes, name: str, **labels: str) -> float:
    found = ((named, dict(given), value) for (named, given), value in samples(text).items())
    return sum(value for named, given, value in found if named == name and labels.items() <= given.items())


def plain(outcome: str, n: int = 0) -> Record:
    return Record(
        request_id=str(n), endpoint="chat", model=f"m{n}", tenant="", outcome=outcome, status=200,  # type: ignore[arg-type]
        started=0.0, duration=0.1, usage=Usage(1, 2, 3),
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(0, 300))))
def test_outcomes_add_up_to_requests_whatever_the_names(told: list[tuple[str, int]]) -> None:
    tallies = Tallies(models=5)
    for outcome, model in told:
        tallies.record(plain(outcome, model))
    snapshot = tallies.snapshot()
    assert snapshot.value("samewise.requests") == len(told)
    for outcome in OUTCOMES:
        assert snapshot.value("samewise.requests", outcome=outcome) == sum(one == outcome for one, _ in told)
    models = {value for number in snapshot.numbers for name, value in number.attributes if name == "model"}
    assert len(models) <= 6


def test_a_miss_and_four_hits_count_their_tokens_once_as_work_and_four_times_as_saved(
    observer: Telemetry, record: Make
) -> None:
    trace = observer.begin({}, "POST /v1/chat/completions")
    observer.finish(trace, record("miss"))
    for outcome in ("hit", "hit", "coalesced", "hit"):
        observer.finish(trace, record(outcome))
    observer.notice(Notice(kind="tokens", attributes={"kind": "verified"}, value=18))
    text, _ = observer.prometheus()
    assert total(text, "samewise_tokens_total", kind="generated") == 18
    assert total(text, "samewise_tokens_total", kind="saved") == 72
    assert total(text, "samewise_tokens_total", kind="verified") == 18


def test_prefix_reuse_is_counted_where_an_upstream_was_asked(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    observer.finish(trace, record("miss", usage=Usage(100, 1, 64)))
    observer.finish(trace, record("hit", usage=Usage(100, 1, 64)))
    assert observer.snapshot().value("samewise.tokens", kind="prefix_cached") == 64


def test_durations_fall_into_their_buckets(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    for duration in (0.00005, 0.0001, 0.0002, 1000.0):
        observer.finish(trace, record("hit", duration=duration, lookup=0.001, first_byte=0.002, age=59.0))
    text, _ = observer.prometheus()
    found = samples(text)
    name = "samewise_request_duration_seconds"
    assert found[(f"{name}_bucket", (("le", "0.0001"), ("outcome", "hit")))] == 2
    assert found[(f"{name}_bucket", (("le", "300"), ("outcome", "hit")))] == 3
    assert found[(f"{name}_bucket", (("le", "+Inf"), ("outcome", "hit")))] == 4
    assert found[(f"{name}_count", (("outcome", "hit"),))] == 4
    assert math.isclose(found[(f"{name}_sum", (("outcome", "hit"),))], 1000.00035)
    assert found[("samewise_lookup_duration_seconds_count", (("outcome", "hit"),))] == 4
    assert found[("samewise_time_to_first_token_seconds_count", (("outcome", "hit"),))] == 4
    assert found[("samewise_entry_age_seconds_bucket", (("le", "60"),))] == 4


def test_names_that_were_refused_take_no_place(record: Make) -> None:
    tallies = Tallies(models=2)
    for number in range(100):
        tallies.record(record("error", status=404, model=f"junk{number}"))
    tallies.record(record("miss", model="real"))
    snapshot = tallies.snapshot()
    assert snapshot.value("samewise.requests", model="other") == 100
    assert snapshot.value("samewise.requests", model="real") == 1


def test_a_name_that_is_too_long_is_no_label(record: Make) -> None:
    tallies = Tallies()
    for name in ("n" * 129, "n" * 5000):
        tallies.record(record("miss", model=name))
    tallies.record(record("miss", model="n" * 128))
    snapshot = tallies.snapshot()
    assert snapshot.value("samewise.requests", model="other") == 2
    assert snapshot.value("samewise.requests", model="n" * 128) == 1


def test_the_tier_is_told_of_hits_alone(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    observer.finish(trace, record("hit", tier="memory"))
    observer.finish(trace, record("miss", tier="store"))
    text, _ = observer.prometheus()
    assert total(text, "samewise_requests_total", tier="memory") == 1
    assert total(text, "samewise_requests_total", tier="store") == 0


VERIFIED = Notice(kind="verification", attributes={"verdict": "match", "environment": "e"})
STORE_ERROR = Notice(kind="store-error", attributes={"tier": "store", "error": "timeout"})
INVALIDATED = Notice(kind="control", attributes={"kind": "invalidate"}, detail={"subject": "model"})
NOTICES: list[tuple[Notice, str, dict[str, str]]] = [
    (VERIFIED, "verifications", {"verdict": "match"}),
    (STORE_ERROR, "store_errors", {"error": "timeout"}),
    (Notice(kind="store-eviction", attributes={"tier": "memory"}), "store_evictions", {"tier": "memory"}),
    (Notice(kind="verify-dropped"), "verify_dropped", {}),
    (INVALIDATED, "invalidations", {"scope": "model"}),
    (Notice(kind="control", attributes={"kind": "profile.set"}), "changes", {"kind": "profile.set"}),
    (Notice(kind="something new"), "events", {"kind": "something new"}),
]


@pytest.mark.parametrize(("notice", "name", "labels"), NOTICES)
def test_a_notice_advances_its_counter(observer: Telemetry, notice: Notice, name: str, labels: dict[str, str]) -> None:
    observer.notice(notice)
    text, _ = observer.prometheus()
    assert total(text, f"samewise_{name}_total", **labels) == 1


def test_consistency_and_inflight_are_what_they_are_now(observer: Telemetry) -> None:
    for value in (0.5, 0.75):
        observer.notice(Notice(kind="consistency", attributes={"environment": "e"}, value=value))
    for change in (1, 1, -1):
        observer.gauge("inflight", change)
    text, _ = observer.prometheus()
    assert total(text, "samewise_consistency_ratio", environment="e") == 0.75
    assert total(text, "samewise_inflight") == 1


def test_stores_and_upstreams_are_asked_when_they_are_read() -> None:
    status = [
        StoreStatus(name="memory", available=True, entries=3, bytes=30),
        StoreStatus(name="redis", available=False),
    ]
    members = [Member(url="http://u/v1", healthy=True, running=2)]
    text = exposition(Tallies(sources=[stores(lambda: status), upstreams(lambda: members)]).snapshot())
    assert total(text, "samewise_store_entries", tier="memory") == 3
    assert total(text, "samewise_store_bytes", tier="memory") == 30
    assert total(text, "samewise_store_available", tier="redis") == 0
    assert total(text, "samewise_upstream_healthy", upstream="http://u/v1") == 1


def test_workers_add_up_and_what_they_share_is_counted_once(record: Make) -> None:
    rows = [StoreStatus(name="memory", available=True, entries=3), StoreStatus(name="redis", available=True, entries=9)]
    workers = [Tallies(sources=[stores(lambda: rows)]) for _ in range(4)]
    for worker in workers:
        worker.record(record("hit"))
        worker.shift("samewise.inflight", 2)
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(worker.snapshot()), type=Snapshot) for worker in workers]
    one = merge(sent)
    assert one.value("samewise.requests") == 4
    assert one.value("samewise.inflight") == 8
    assert one.value("samewise.store.entries", tier="memory") == 12
    assert one.value("samewise.store.entries", tier="redis") == 9
    assert sum(sum(item.counts) for item in one.histograms if item.name == "samewise.request.duration") == 4


def test_openmetrics_has_exemplars_and_text_has_none(observer: Telemetry, record: Make) -> None:
    observer.tallies.record(record("miss"), ("a" * 32, "b" * 16), 5.0)
    observer.notice(NOTICES[0][0])
    text, content_type = observer.prometheus("application/openmetrics-text; version=1.0.0")
    assert content_type == OPENMETRICS
    families = {family.name: family for family in parse_openmetrics(text.decode())}  # type: ignore[no-untyped-call]
    marked = [s.exemplar for s in families["samewise_request_duration_seconds"].samples if s.exemplar]
    assert [(one.labels, one.value) for one in marked] == [({"trace_id": "a" * 32}, 0.25)]
    assert b"trace_id" not in observer.prometheus()[0]


@settings(deadline=None)
@given(st.text())
def test_any_name_is_escaped(model: str) -> None:
    tallies = Tallies()
    tallies.record(msgspec.structs.replace(plain("miss"), model=model))
    assert total(exposition(tallies.snapshot()), "samewise_requests_total") == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_what_is_exposed(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    for outcome in OUTCOMES:
        observer.finish(trace, record(outcome, lookup=0.1, age=1.0, reason="unseeded", first_byte=0.1))
    for notice, _, _ in NOTICES:
        observer.notice(notice)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=observer.prometheus()[0], capture_output=True, check=False
    )
    problems = [line for line in done.stderr.decode().splitlines() if "error" in line.lower() or "parsing" in line]
    assert done.returncode in (0, 3)
    assert problems == []


def test_opentelemetry_is_told_the_same(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    for outcome in ("hit", "miss", "miss"):
        observer.finish(trace, record(outcome))
    observer.gauge("inflight", 1)
    data = metrics_data(observer.snapshot(), resource("1", "i"), 1, 2)
    metrics: dict[str, Any] = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    points = metrics["samewise.requests"].data.data_points
    assert {point.attributes["outcome"]: point.value for point in points} == {"hit": 1, "miss": 2}
    assert metrics["samewise.requests"].data.is_monotonic
    assert metrics["samewise.inflight"].data.data_points[0].value == 1
    server = metrics["gen_ai.server.request.duration"].data.data_points
    assert [(point.count, point.attributes) for point in server] == [
        (2, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"})
    ]


def test_exemplars_travel_over_otlp_with_their_trace_and_span(observer: Telemetry, record: Make) -> None:
    observer.tallies.record(record("miss"), ("a" * 32, "b" * 16), 5.0)
    data = metrics_data(observer.snapshot(), resource("1", "i"), 1, 2)
    sent = encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics
    (point,) = next(metric for metric in sent if metric.name == "samewise.request.duration").histogram.data_points
    told = [(one.as_double, one.trace_id.hex(), one.span_id.hex(), one.time_unix_nano / 1e9) for one in point.exemplars]
    assert told == [(0.25, "a" * 32, "b" * 16, 5.0)]


def test_rates_are_those_of_the_last_minute(observer: Telemetry, record: Make, clock: ManualClock) -> None:
    trace = observer.begin({}, "x")
    for _ in range(120):
        clock.advance(1)
        observer.finish(trace, record("hit"))
    clock.advance(0.5)
    status = observer.status()
    assert status["requests"] == {"hit": 120}
    assert status["rate"]["hit"] == pytest.approx(1.0, abs=0.05)
    assert status["hit_ratio"] == 1.0
    clock.advance(600)
    observer.finish(trace, record("miss"))
    assert observer.status()["rate"]["hit"] < 0.2
