"""Exporters: what arrives at a collector, and what a collector that doesn't answer costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from samewise.ports import Record
from samewise.telemetry import build
from tests.support.clock import ManualClock

Make = Callable[..., Record]


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.received: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/metrics": []}

    def traces(self) -> list[Any]:
        return [
            span
            for body in self.received["/v1/traces"]
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        last = ExportMetricsServiceRequest.FromString(self.received["/v1/metrics"][-1])
        return {metric.name: metric for metric in last.resource_metrics[0].scope_metrics[0].metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.received[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


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
    observer.close(10)
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
    observer.close(10)
    assert len(collector.traces()) == 1
    assert collector.received["/v1/metrics"] == []


BUSY = """
import sys, time
from samewise.ports import Record
from samewise.telemetry import build

class Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

observer = build(clock=Clock(), version="1", otlp_endpoint=sys.argv[1])
took = []
for _ in range(5000):
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
print(sorted(took)[4950], time.perf_counter() - before, observer.snapshot().value("samewise.requests"))
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
        timeout=20,
        env={"OTEL_EXPORTER_OTLP_PROTOCOL": protocol},
    )
    p99, closing, requests = (float(figure) for figure in done.stdout.split())
    assert p99 < 0.005
    assert closing < 2
    assert requests == 5000


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    code = """
import sys, time
from samewise.telemetry import build
class Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
build(clock=Clock(), version="1").prometheus()
print([name for name in sys.modules if name.startswith(("opentelemetry", "grpc", "google"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert done.stdout.strip() == "[]"
