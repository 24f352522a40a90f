"""Puts an observer together from plain values, with exporters where they are asked for."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from samewise.ports import Clock
from samewise.telemetry import otlp
from samewise.telemetry.log import Log
from samewise.telemetry.observer import Telemetry
from samewise.telemetry.tally import Source, Tallies
from samewise.telemetry.tracing import Tracer, Untraced

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from samewise.telemetry.otlp_logs import Logs


def build(
    *, clock: Clock, version: str, otlp_endpoint: str = "", sources: Iterable[Source] = (), log: Log | None = None
) -> Telemetry:
    """An observer for this process. Call it after any fork: exporters have threads.

    Spans, metrics and log lines go out by OTLP where `otlp_endpoint` or an OTEL_* variable says whereto; otherwise
    nothing of OpenTelemetry is imported. `Telemetry.close(grace)` ends it.
    """
    tallies = Tallies(sources=sources)
    logs = otlp.wanted("logs", otlp_endpoint)
    traces, metrics = otlp.wanted("traces", otlp_endpoint), otlp.wanted("metrics", otlp_endpoint)
    tracing: Tracer | Untraced = Untraced()
    closing: list[otlp.Periodic | Spans | Logs] = []
    if traces or metrics or logs:
        described_by = otlp.resource(version, str(uuid.uuid4()))
        if traces:
            processor = otlp.span_processor(otlp_endpoint)
            tracing = Tracer(processor, described_by, clock)
            closing.append(Spans(processor))
        if metrics:
            closing.append(otlp.Periodic(otlp.metric_exporter(otlp_endpoint), tallies.snapshot, described_by))
        if logs:
            from samewise.telemetry.otlp_logs import Logs

            closing.append(Logs(otlp.log_exporter(otlp_endpoint), described_by))
    telemetry = Telemetry(clock=clock, log=log or Log(logging.getLogger("samewise")), tallies=tallies, tracing=tracing)
    for item in closing:
        telemetry.closes(item)
    return telemetry


class Spans:
    """The queue of spans, to be emptied at the end."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor

    def close(self, timeout: float) -> None:
        """Blocks until the queue is empty or the exporter gives up; the caller decides how long to wait."""
        self._processor.shutdown()
