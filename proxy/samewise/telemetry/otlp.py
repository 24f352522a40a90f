"""OTLP over HTTP or gRPC, by the SDK's exporters. They are imported only where an endpoint is set.

Nothing here is waited for by a request: spans go into a bounded queue, metrics are read by a thread of
their own, and both are given up at exit when the time allowed is over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from samewise.telemetry.instruments import INSTRUMENTS
from samewise.telemetry.snapshot import Buckets, Number, Snapshot
from samewise.telemetry.tracing import SCHEMA, SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

_GRPC_PORT = 4317
_INTERVAL = 60.0
_ATTEMPTS = 3
_logger = logging.getLogger("samewise")


def wanted(signal: str, endpoint: str = "") -> bool:
    """True where `signal` (traces, metrics, logs) is to be exported, by the setting or the OTEL_* variables."""
    if _variable("OTEL_SDK_DISABLED").lower() == "true" or _variable(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return False
    return bool(endpoint or _endpoint(signal))


def resource(version: str, instance: str) -> Resource:
    """Who tells: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our own words."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {"service.name": "samewise", "service.version": version, "service.instance.id": instance}
    base = Resource.create({}).merge(Resource(own))
    return base.merge(OTELResourceDetector().detect())


def span_processor(endpoint: str = "") -> BatchSpanProcessor:
    """A bounded queue (`OTEL_BSP_*`) before the exporter of spans."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(_exporter("traces", "trace_exporter", "OTLPSpanExporter", endpoint))


def metric_exporter(endpoint: str = "") -> MetricExporter:
    """The exporter of metrics."""
    exporter: MetricExporter = _exporter("metrics", "metric_exporter", "OTLPMetricExporter", endpoint)
    return exporter


def log_exporter(endpoint: str = "") -> LogRecordExporter:
    """The exporter of log lines."""
    exporter: LogRecordExporter = _exporter("logs", "_log_exporter", "OTLPLogExporter", endpoint)
    return exporter


def _exporter(signal: str, module: str, name: str, endpoint: str) -> Any:
    """The SDK's exporter of a signal, over the protocol that the settings and variables ask for."""
    package = "opentelemetry.exporter.otlp.proto"
    if _grpc(signal, endpoint):
        return getattr(import_module(f"{package}.grpc.{module}"), name)(endpoint=endpoint or None)
    return getattr(import_module(f"{package}.http.{module}"), name)(endpoint=_path(endpoint, signal))


class Periodic:
    """Exports a snapshot every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds, and once more at its end."""

    def __init__(self, exporter: MetricExporter, snapshot: Callable[[], Snapshot], described_by: Resource) -> None:
        self._exporter = exporter
        self._snapshot = snapshot
        self._resource = described_by
        self._began = time.time_ns()
        self._stop = threading.Event()
        self._interval = float(_variable("OTEL_METRIC_EXPORT_INTERVAL") or _INTERVAL * 1000) / 1000
        self._thread = threading.Thread(target=self._run, name="samewise-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Export the last snapshot, but wait for it no longer than `timeout` seconds."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        snapshot = self._look()
        if snapshot is not None:
            self._exporter.export(metrics_data(snapshot, self._resource, self._began, time.time_ns()))

    def _look(self) -> Snapshot | None:
        """The loop goes on while this thread reads: what changes under its hands is read again, a few times."""
        for _ in range(_ATTEMPTS):
            try:
                return self._snapshot()
            except Exception:
                _logger.debug("the metrics could not be read now", exc_info=True)
        return None


def metrics_data(snapshot: Snapshot, described_by: Resource, began: int, now: int) -> MetricsData:
    """The snapshot in OpenTelemetry's data model, cumulative since `began`. Times are nanoseconds since the epoch."""
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    numbers: dict[str, list[Number]] = {}
    for number in snapshot.numbers:
        numbers.setdefault(number.name, []).append(number)
    histograms: dict[str, list[Buckets]] = {}
    for buckets in snapshot.histograms:
        histograms.setdefault(buckets.name, []).append(buckets)
    metrics = []
    for name, instrument in INSTRUMENTS.items():
        if name in numbers:
            data = _numbers(numbers[name], instrument.kind == "counter", began, now)
        elif name in histograms:
            data = _histograms(histograms[name], began, now)
        else:
            continue
        metrics.append(Metric(name=name, description=instrument.description, unit=instrument.unit, data=data))
    scope = ScopeMetrics(scope=InstrumentationScope(SCOPE, schema_url=SCHEMA), metrics=metrics, schema_url=SCHEMA)
    whole = ResourceMetrics(resource=described_by, scope_metrics=[scope], schema_url=described_by.schema_url)
    return MetricsData(resource_metrics=[whole])


def _numbers(numbers: list[Number], counter: bool, began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, NumberDataPoint, Sum

    points = [
        NumberDataPoint(
            attributes=dict(number.attributes),
            start_time_unix_nano=began if counter else 0,
            time_unix_nano=now,
            value=number.value,
        )
        for number in numbers
    ]
    if counter:
        return Sum(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(data_points=points)


def _histograms(histograms: list[Buckets], began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint

    unknown: Any = None
    points = [
        HistogramDataPoint(
            attributes=dict(item.attributes),
            start_time_unix_nano=began,
            time_unix_nano=now,
            count=sum(item.counts),
            sum=item.total,
            bucket_counts=list(item.counts),
            explicit_bounds=list(item.bounds),
            min=unknown,
            max=unknown,
            exemplars=[
                Exemplar({}, each.value, int(each.at * 1e9), int(each.span_id, 16), int(each.trace_id, 16))
                for each in item.exemplars.values()
            ],
        )
        for item in histograms
    ]
    return Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)


def _grpc(signal: str, endpoint: str) -> bool:
    protocol = _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol:
        return protocol == "grpc"
    try:
        return urlsplit(endpoint or _endpoint(signal)).port == _GRPC_PORT
    except ValueError:
        return False


def _endpoint(signal: str) -> str:
    return _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or _variable("OTEL_EXPORTER_OTLP_ENDPOINT")


def _path(endpoint: str, signal: str) -> str | None:
    return f"{endpoint.rstrip('/')}/v1/{signal}" if endpoint else None


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()
