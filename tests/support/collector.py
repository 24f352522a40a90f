"""OTLP receivers over HTTP and gRPC, that keep what they get. As a module: one over HTTP, that says where it is."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_SERVICES = {
    "/v1/traces": ("trace.v1.TraceService", ExportTraceServiceResponse),
    "/v1/metrics": ("metrics.v1.MetricsService", ExportMetricsServiceResponse),
    "/v1/logs": ("logs.v1.LogsService", ExportLogsServiceResponse),
}


class Collector:
    """`received` has the bodies by path, also of what came over gRPC. It answers while `open` is set."""

    def __init__(self) -> None:
        self.url = ""
        self.open = threading.Event()
        self.open.set()
        self.received: dict[str, list[bytes]] = defaultdict(list)

    def traces(self) -> list[Any]:
        """Every span so far."""
        return [
            span
            for body in list(self.received["/v1/traces"])
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def logs(self) -> list[Any]:
        """Every log line so far."""
        return [
            line
            for body in list(self.received["/v1/logs"])
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs
            for scope in resource.scope_logs
            for line in scope.log_records
        ]

    def total(self, name: str, **wanted: str) -> float:
        """The sum of a counter over all processes that told of it, each by its last export."""
        last: dict[str, Any] = {}
        for body in list(self.received["/v1/metrics"]):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                last[attributes(resource.resource)["service.instance.id"]] = resource
        total: float = sum(
            point.as_double or point.as_int
            for resource in last.values()
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.sum.data_points
            if wanted.items() <= attributes(point).items()
        )
        return total

    def metrics(self) -> dict[str, Any]:
        """The last export, by name."""
        last = ExportMetricsServiceRequest.FromString(self.received["/v1/metrics"][-1])
        return {metric.name: metric for metric in last.resource_metrics[0].scope_metrics[0].metrics}


def attributes(told: Any) -> dict[str, Any]:
    """Attributes of a span, a point or a line as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in told.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.received[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            found.open.wait()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    found.open.set()
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def collecting_grpc() -> Iterator[Collector]:
    """A collector on a free port, over gRPC."""
    found = Collector()

    def service(path: str, name: str, response: Any) -> Any:
        def export(body: bytes, _: Any) -> bytes:
            found.received[path].append(body)
            found.open.wait()
            whole: bytes = response().SerializeToString()
            return whole

        handler = grpc.unary_unary_rpc_method_handler(export)
        return grpc.method_handlers_generic_handler(f"opentelemetry.proto.collector.{name}", {"Export": handler})

    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([service(path, *each) for path, each in _SERVICES.items()])
    found.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield found
    found.open.set()
    server.stop(None).wait()


if __name__ == "__main__":
    with collecting() as alone:
        print(alone.url, flush=True)
        input()
