"""Log lines over OTLP, each with the trace that it belongs to. Imported only where an endpoint is set."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import TraceFlags

from samewise.telemetry.tracing import SCHEMA, SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.resources import Resource

_EXPORTERS = ("opentelemetry", "urllib3", "grpc")
_SEVERITY = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)


class Logs:
    """Hears the root logger until it is closed, and sends what it hears through a bounded queue (`OTEL_BLRP_*`).

    What exporters say of themselves is left out: a collector that is down must not be told so.
    """

    def __init__(self, exporter: LogRecordExporter, described_by: Resource) -> None:
        self._provider = LoggerProvider(resource=described_by, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._handler = _Handler(self._provider.get_logger(SCOPE, schema_url=SCHEMA))
        logging.getLogger().addHandler(self._handler)

    def close(self, timeout: float) -> None:
        """Blocks until the queue is empty or the exporter gives up; the caller decides how long to wait."""
        logging.getLogger().removeHandler(self._handler)
        self._provider.shutdown()


class _Handler(logging.Handler):
    """Closed by the end of the interpreter too, which waits: so closing it does nothing."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_EXPORTERS):
            return
        fields = _fields(record)
        trace_id, span_id = _number(fields.pop("trace_id", None)), _number(fields.pop("span_id", None))
        severity = next((known for level, known in _SEVERITY if record.levelno >= level), SeverityNumber.DEBUG)
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=int(record.created * 1e9),
                trace_id=trace_id,
                span_id=span_id,
                trace_flags=TraceFlags(TraceFlags.SAMPLED) if trace_id else None,
                severity_text=record.levelname,
                severity_number=severity,
                body=record.getMessage(),
                attributes={"logger.name": record.name, **fields},
            )
        )


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    if not isinstance(fields, Mapping):
        return {}
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)


def _number(text: object) -> int | None:
    return int(text, 16) if isinstance(text, str) and text else None
