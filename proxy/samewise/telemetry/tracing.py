"""Traces: the caller's is continued, and spans are made after the fact, from what the record says.

Nothing is attached to a context, so nothing can be detached from the wrong one; what isn't sampled makes
no span. Attribute names are those of the GenAI semantic conventions (schema 1.44) where one exists.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from samewise.ports import Clock, Notice, Record, Trace
from samewise.telemetry import content

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import SpanContext

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "samewise"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_OPERATIONS = {"chat": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion"}


class Parent(msgspec.Struct, frozen=True):
    """A caller's trace context."""

    trace_id: str
    span_id: str
    sampled: bool


class Span(msgspec.Struct, frozen=True):
    """The trace of one request: `span_id` is the server's span, `upstream_id` that of its upstream call."""

    traceparent: str | None = None
    trace_id: str | None = None
    span_id: str = ""
    upstream_id: str = ""
    parent_id: str | None = None
    sampled: bool = False
    name: str = ""


UNTRACED = Span()


def parse(traceparent: str | None) -> Parent | None:
    """W3C trace context, None where it is absent or malformed (section 3.2.2)."""
    match = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & 1))


class Untraced:
    """No spans; the caller's context travels on as it came, where it is well formed."""

    def begin(self, headers: Mapping[str, str], name: str) -> Span:
        given = headers.get("traceparent")
        parent = parse(given)
        if parent is None or given is None:
            return UNTRACED
        return Span(traceparent=given, trace_id=parent.trace_id)

    def finish(self, trace: Trace, record: Record) -> None:
        """Nothing to tell."""

    def verified(self, notice: Notice) -> None:
        """Nothing to tell."""


_SCALARS = (str, int, float, bool)


class Tracer:
    """Spans through the OpenTelemetry SDK, to the processor that is given.

    The SDK's own variables decide on sampling (`OTEL_TRACES_SAMPLER`) and limits. The decision is made
    at the beginning, by trace id, so that the upstream learns of it.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource, clock: Clock) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._clock = clock
        self._random = random.Random()
        self._ids = _Prepared()
        self._sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=self._ids.generator()
        )
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(SCOPE, schema_url=SCHEMA)

    def begin(self, headers: Mapping[str, str], name: str) -> Span:
        parent = parse(headers.get("traceparent"))
        trace_id = parent.trace_id if parent else f"{self._random.getrandbits(128) or 1:032x}"
        span_id, upstream_id = self._span_id(), self._span_id()
        sampled = self._sampled(parent, trace_id, name)
        return Span(
            traceparent=f"00-{trace_id}-{upstream_id if sampled else span_id}-{'01' if sampled else '00'}",
            trace_id=trace_id,
            span_id=span_id,
            upstream_id=upstream_id,
            parent_id=parent.span_id if parent else None,
            sampled=sampled,
            name=name,
        )

    def finish(self, trace: Trace, record: Record) -> None:
        """Make the spans of a sampled request: the server's, and below it the look-up and the upstream call."""
        if not isinstance(trace, Span) or not trace.sampled or trace.trace_id is None:
            return
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        ids, tracer = self._ids, self._tracer
        started = self._clock.now() - (self._clock.monotonic() - record.started)
        leader = record.leader
        links: list[Link] = []
        if isinstance(leader, Span) and leader.sampled and leader.trace_id is not None and leader is not trace:
            links.append(Link(_context(leader.trace_id, leader.span_id, remote=False)))
        ids.prepare(trace.trace_id, trace.span_id)
        server = tracer.start_span(
            trace.name,
            context=_parent(trace.trace_id, trace.parent_id, remote=True),
            kind=SpanKind.SERVER,
            attributes=_server_attributes(record),
            links=links,
            start_time=_nanoseconds(started),
        )
        if record.content is not None:
            with contextlib.suppress(Exception):
                server.set_attributes(content.attributes(record.content))
        if record.status >= 500:
            server.set_status(Status(StatusCode.ERROR))
        if record.first_byte is not None:
            server.add_event("first byte", timestamp=_nanoseconds(started + record.first_byte))
        inside = _parent(trace.trace_id, trace.span_id, remote=False)
        if record.lookup is not None:
            ids.prepare(trace.trace_id, self._span_id())
            lookup = tracer.start_span(
                "lookup",
                context=inside,
                attributes={"samewise.tier": record.tier or "none"},
                start_time=_nanoseconds(started),
            )
            lookup.end(_nanoseconds(started + record.lookup))
        if record.upstream_started is not None and record.leader is None:
            began = started + (record.upstream_started - record.started)
            ids.prepare(trace.trace_id, trace.upstream_id)
            upstream = tracer.start_span(
                f"{_operation(record.endpoint)} {record.model}".strip(),
                context=inside,
                kind=SpanKind.CLIENT,
                attributes=_upstream_attributes(record),
                start_time=_nanoseconds(began),
            )
            if record.status >= 500:
                upstream.set_status(Status(StatusCode.ERROR))
            upstream.end(_nanoseconds(began + (record.upstream or 0.0)))
        if record.store_started is not None:
            began = started + (record.store_started - record.started)
            ids.prepare(trace.trace_id, self._span_id())
            store = tracer.start_span(
                "store", context=inside, attributes={"samewise.stored": record.stored}, start_time=_nanoseconds(began)
            )
            store.end(_nanoseconds(began + (record.store or 0.0)))
        server.end(_nanoseconds(started + record.duration))

    def verified(self, notice: Notice) -> None:
        """A recomputation, in a trace of its own that links to the request whose answer it is about.

        It is told where that request was sampled, and where its beginning is known.
        """
        original = notice.trace
        if not isinstance(original, Span) or not original.sampled or original.trace_id is None:
            return
        if notice.started is None:
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import Link

        began = self._clock.now() - (self._clock.monotonic() - notice.started)
        self._ids.prepare(f"{self._random.getrandbits(128) or 1:032x}", self._span_id())
        span = self._tracer.start_span(
            "verify",
            context=Context(),
            attributes={f"samewise.{name}": value for name, value in notice.attributes.items() if value},
            links=[Link(_context(original.trace_id, original.span_id, remote=False))],
            start_time=_nanoseconds(began),
        )
        ended = _nanoseconds(began + (notice.duration or 0.0))
        if notice.attributes.get("verdict") != "match":
            told = {f"samewise.{name}": item for name, item in notice.detail.items() if isinstance(item, _SCALARS)}
            span.add_event("samewise.divergence", told, ended)
        span.end(ended)

    def _span_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"

    def _sampled(self, parent: Parent | None, trace_id: str, name: str) -> bool:
        context = _parent(parent.trace_id, parent.span_id, remote=True, sampled=parent.sampled) if parent else None
        decision = self._sampler.should_sample(context, int(trace_id, 16), name).decision
        return decision.name == "RECORD_AND_SAMPLE"


class _Prepared:
    """Ids that were told to callers and upstreams before their spans were made."""

    def __init__(self) -> None:
        self._trace_id = 0
        self._span_id = 0

    def prepare(self, trace_id: str, span_id: str) -> None:
        self._trace_id, self._span_id = int(trace_id, 16), int(span_id, 16)

    def generator(self) -> Any:
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        prepared = self

        class Generator(IdGenerator):
            def generate_trace_id(self) -> int:
                return prepared._trace_id

            def generate_span_id(self) -> int:
                return prepared._span_id

        return Generator()


def _context(trace_id: str, span_id: str, *, remote: bool, sampled: bool = True) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=flags)


def _parent(trace_id: str, span_id: str | None, *, remote: bool, sampled: bool = True) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if span_id is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(_context(trace_id, span_id, remote=remote, sampled=sampled)), Context())


def _server_attributes(record: Record) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool | None] = {
        "http.response.status_code": record.status,
        "gen_ai.operation.name": _operation(record.endpoint),
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.time_to_first_chunk": record.first_byte,
        "gen_ai.usage.input_tokens": record.usage.prompt_tokens or None,
        "gen_ai.usage.output_tokens": record.usage.completion_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": record.prefix_cached or None,
        "samewise.request_id": record.request_id,
        "samewise.cache": record.outcome,
        "samewise.reason": record.reason,
        "samewise.tier": record.tier,
        "samewise.key": record.key,
        "samewise.environment": record.environment,
        "samewise.snapshot": record.snapshot,
        "samewise.tenant": record.tenant or None,
        "samewise.stored": record.stored,
        "samewise.cancelled": record.cancelled,
        "samewise.entry.age": record.age,
    }
    if record.cancelled:
        attributes["error.type"] = "cancelled"
    elif record.status >= 400:
        attributes["error.type"] = record.reason or str(record.status)
    return {name: value for name, value in attributes.items() if value is not None}


def _upstream_attributes(record: Record) -> dict[str, str | int]:
    attributes: dict[str, str | int | None] = {
        "gen_ai.operation.name": _operation(record.endpoint),
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.usage.prompt_tokens or None,
        "gen_ai.usage.output_tokens": record.usage.completion_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": record.prefix_cached or None,
        "samewise.upstream": record.member,
        "samewise.environment": record.environment,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _operation(endpoint: str) -> str:
    return _OPERATIONS.get(endpoint, endpoint)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
