"""Exporters: what arrives at a collector, and what a collector that doesn't answer costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from samewise.ports import Record
from samewise.telemetry import build
from samewise.telemetry.snapshot import Number
from tests.support.clock import ManualClock
from tests.support.collector import Collector, attributes, collecting
from tests.support.patience import ENOUGH

Make = Callable[..., Record]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def silent() -> Iterator[str]:
    """A collector that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_collector_gets_every_span_and_all_counts_at_the_end(
    collector: Collector, clock: ManualClock, record: Make
) -> None:
    observer = build(clock=clock, version="1", otlp_endpoint=collector.url)
    for outcome in ("miss", "hit", "hit"):
        observer.finish(observer.begin({}, "POST /v1/chat/completions"), record(outcome))
    observer.close(ENOUGH)
    assert len(collector.traces()) == 3
    points = collector.metrics()["samewise.requests"].sum.data_points
    assert sorted(point.as_double or point.as_int for point in points) == [1, 2]


def test_the_standard_variables_name_the_collector(
    collector: Collector, clock: ManualClock, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    observer = build(clock=clock, version="1")
    observer.finish(observer.begin({}, "x"), record("miss"))
    observer.close(ENOUGH)
    assert len(collector.traces()) == 1
    assert collector.received["/v1/metrics"] == []


def test_a_collector_gets_log_lines_with_their_trace(collector: Collector, clock: ManualClock, record: Make) -> None:
    observer = build(clock=clock, version="1", otlp_endpoint=collector.url)
    trace = observer.begin({}, "chat")
    observer.finish(trace, record("error", status=502, reason="upstream-unreachable"))
    observer.close(ENOUGH)
    (line,) = collector.logs()
    assert line.body.string_value == "a request failed"
    assert line.trace_id.hex() == trace.trace_id
    assert line.span_id in {span.span_id for span in collector.traces()}
    assert attributes(line)["reason"] == "upstream-unreachable"


BUSY = """
import sys, time
from samewise.ports import Record
from samewise.telemetry import build
from samewise.telemetry.snapshot import Number

class Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

observer = build(clock=Clock(), version="1", otlp_endpoint=sys.argv[1])
took = []
for _ in range(2000):
    before = time.perf_counter()
    observer.finish(
        observer.begin({}, "x"),
        Record(
            request_id="r", endpoint="chat", model="m", tenant="", outcome="hit", status=200, started=0, duration=0.1
        ),
    )
    took.append(time.perf_counter() - before)
before = time.perf_counter()
observer.close(0.5)
print(sorted(took)[1000], sum(took), time.perf_counter() - before, observer.snapshot().value("samewise.requests"))
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_never_answers_costs_a_request_nothing_and_the_exit_no_more_than_its_grace(
    silent: str, protocol: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY, silent],
        capture_output=True,
        text=True,
        check=True,
        timeout=ENOUGH,
        env={"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"},
    )
    median, whole, closing, requests = (float(figure) for figure in done.stdout.split())
    assert median < 0.001
    assert max(whole, closing) < ENOUGH / 2, "an exporter waits an hour for an answer"
    assert requests == 2000


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    code = """
import sys, time
from samewise.telemetry import build
from samewise.telemetry.snapshot import Number
class Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
build(clock=Clock(), version="1").prometheus()
print([name for name in sys.modules if name.startswith(("opentelemetry", "grpc", "google"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == "[]"


def test_metrics_that_can_not_be_read_now_are_exported_the_next_time(
    collector: Collector, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    asked = iter(range(1_000_000))
    later = threading.Event()

    def source() -> Iterator[Number]:
        if next(asked) < 7:
            raise RuntimeError("dictionary changed size during iteration")
        later.set()
        yield Number("samewise.upstream.healthy", (("upstream", "u"),), 1)

    observer = build(clock=clock, version="1", otlp_endpoint=collector.url, sources=[source])
    assert later.wait(ENOUGH)
    observer.close(ENOUGH)
    assert collector.metrics()["samewise.upstream.healthy"].gauge.data_points
