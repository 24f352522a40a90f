"""Spans say what happened, continue the caller's trace, and exist only where they are sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from samewise.core.answer import Usage
from samewise.ports import Notice, Record
from samewise.telemetry.otlp import resource
from samewise.telemetry.tracing import Tracer, Untraced, parse
from tests.support.clock import ManualClock

Make = Callable[..., Record]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MALFORMED = [
    "",
    "x",
    CALLER[:52],
    f"{CALLER}-more",
    f" {CALLER}",
    f"{CALLER}\n",
    CALLER.upper(),
    f"ff{CALLER[2:]}",
    CALLER.replace(CALLER[3:35], "0" * 32),
    CALLER.replace(CALLER[36:52], "0" * 16),
    CALLER.replace("0af", "0ag"),
]


class Kept:
    def __init__(self, clock: ManualClock) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer(SimpleSpanProcessor(self.exporter), resource("1", "i"), clock)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def kept(clock: ManualClock) -> Kept:
    return Kept(clock)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_miss_has_a_lookup_and_an_upstream_call_inside_the_callers_trace(
    kept: Kept, record: Make, clock: ManualClock
) -> None:
    trace = kept.tracer.begin({"traceparent": CALLER}, "POST /v1/chat/completions")
    begun = clock.monotonic() - 0.25
    kept.tracer.finish(
        trace,
        record("miss", lookup=0.01, upstream_started=begun + 0.02, upstream=0.2, first_byte=0.1, member="http://u"),
    )
    spans = kept.spans()
    server, lookup, upstream = spans["POST /v1/chat/completions"], spans["lookup"], spans["chat m"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {CALLER[3:35]}
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == CALLER[36:52]
    assert server.parent.is_remote
    assert [span.parent and span.parent.span_id for span in (lookup, upstream)] == [server.context.span_id] * 2
    assert (server.kind, upstream.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert trace.traceparent == f"00-{CALLER[3:35]}-{upstream.context.span_id:016x}-01"
    start = (clock.now() - 0.25) * 1e9
    times = [(span.start_time, span.end_time) for span in (server, lookup, upstream)]
    wanted = [(0.0, 0.25), (0.0, 0.01), (0.02, 0.22)]
    for (began, ended), (first, last) in zip(times, wanted, strict=True):
        assert began == pytest.approx(start + first * 1e9, abs=2e3)
        assert ended == pytest.approx(start + last * 1e9, abs=2e3)
    assert attributes(server)["samewise.cache"] == "miss"
    assert attributes(server)["gen_ai.request.model"] == "m"
    assert attributes(server)["gen_ai.usage.output_tokens"] == 18
    assert [event.name for event in server.events] == ["first byte"]


def test_prefix_reuse_is_told_of_the_answer_that_a_backend_gave_and_not_of_hits_on_it(kept: Kept, record: Make) -> None:
    name, usage = "gen_ai.usage.cache_read.input_tokens", Usage(100, 1, 64)
    kept.tracer.finish(kept.tracer.begin({}, "asked"), record("miss", usage=usage, upstream_started=1.0, upstream=0.1))
    kept.tracer.finish(kept.tracer.begin({}, "recorded"), record("hit", usage=usage))
    spans = kept.spans()
    assert [attributes(spans[span]).get(name) for span in ("asked", "chat m", "recorded")] == [64, 64, None]


def test_a_hit_has_no_upstream_call(kept: Kept, record: Make) -> None:
    kept.tracer.finish(kept.tracer.begin({}, "x"), record("hit", lookup=0.01))
    assert set(kept.spans()) == {"x", "lookup"}


def test_a_follower_links_to_the_request_whose_fetch_it_shared(kept: Kept, record: Make) -> None:
    leader, follower = kept.tracer.begin({}, "leader"), kept.tracer.begin({}, "follower")
    kept.tracer.finish(follower, record("coalesced", leader=leader, upstream_started=1.0))
    kept.tracer.finish(leader, record("miss"))
    spans = kept.spans()
    assert set(spans) == {"leader", "follower"}
    assert [link.context.span_id for link in spans["follower"].links] == [spans["leader"].context.span_id]


def test_a_caller_that_left_and_a_failure_can_be_told(kept: Kept, record: Make) -> None:
    kept.tracer.finish(kept.tracer.begin({}, "left"), record("miss", cancelled=True))
    kept.tracer.finish(kept.tracer.begin({}, "failed"), record("error", status=502, reason="upstream-unreachable"))
    spans = kept.spans()
    assert attributes(spans["left"])["error.type"] == "cancelled"
    assert spans["failed"].status.status_code is StatusCode.ERROR
    assert attributes(spans["failed"])["error.type"] == "upstream-unreachable"


@pytest.mark.parametrize("given", MALFORMED)
def test_a_malformed_context_begins_a_new_trace_and_does_not_travel(kept: Kept, given: str) -> None:
    trace = kept.tracer.begin({"traceparent": given}, "x")
    assert trace.parent_id is None
    assert trace.traceparent is not None
    assert parse(trace.traceparent) is not None
    assert CALLER[3:35] not in trace.traceparent
    assert Untraced().begin({"traceparent": given}, "x").traceparent is None


@settings(deadline=None)
@given(st.text())
def test_no_context_is_too_strange(given: str) -> None:
    trace = Untraced().begin({"traceparent": given}, "x")
    assert trace.traceparent in (None, given)


def test_a_later_version_may_say_more() -> None:
    assert parse("01" + CALLER[2:] + "-more") is not None


def test_without_tracing_the_callers_context_travels_as_it_came() -> None:
    trace = Untraced().begin({"traceparent": CALLER}, "x")
    assert (trace.traceparent, trace.trace_id) == (CALLER, CALLER[3:35])


def test_what_the_caller_did_not_sample_makes_no_span_and_says_so_upstream(kept: Kept, record: Make) -> None:
    trace = kept.tracer.begin({"traceparent": CALLER[:-1] + "0"}, "x")
    kept.tracer.finish(trace, record("miss", upstream_started=1.0))
    assert kept.spans() == {}
    assert trace.traceparent is not None
    assert trace.traceparent.startswith(CALLER[:35])
    assert trace.traceparent.endswith("-00")


@pytest.mark.parametrize(("ratio", "wanted"), [("0", 0), ("1", 20)])
def test_the_standard_variables_decide_on_sampling(
    clock: ManualClock, record: Make, monkeypatch: pytest.MonkeyPatch, ratio: str, wanted: int
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    kept = Kept(clock)
    for _ in range(20):
        kept.tracer.finish(kept.tracer.begin({}, "x"), record("hit"))
    assert len(kept.exporter.get_finished_spans()) == wanted


def test_the_service_is_named_by_the_standard_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource("1", "i").attributes["service.name"] == "samewise"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    assert resource("1", "i").attributes["service.name"] == "ours"


def test_a_verification_has_a_trace_of_its_own_that_links_to_the_request(
    kept: Kept, record: Make, clock: ManualClock
) -> None:
    original = kept.tracer.begin({"traceparent": CALLER}, "hit")
    kept.tracer.finish(original, record("hit"))
    attributes_of = {"verdict": "match", "environment": "e"}
    begun = clock.monotonic() - 2
    kept.tracer.verified(
        Notice(kind="verification", attributes=attributes_of, trace=original, started=begun, duration=1.5)
    )
    spans = kept.spans()
    assert spans["verify"].context.trace_id != spans["hit"].context.trace_id
    assert spans["verify"].parent is None
    assert [link.context.span_id for link in spans["verify"].links] == [spans["hit"].context.span_id]
    assert attributes(spans["verify"]) == {"samewise.verdict": "match", "samewise.environment": "e"}
    assert (spans["verify"].end_time or 0) - (spans["verify"].start_time or 0) == pytest.approx(1.5e9, abs=2e3)


def test_keeping_an_answer_is_a_span(kept: Kept, record: Make, clock: ManualClock) -> None:
    begun = clock.monotonic() - 0.05
    kept.tracer.finish(kept.tracer.begin({}, "x"), record("miss", store_started=begun, store=0.01, stored=True))
    store = kept.spans()["store"]
    assert attributes(store) == {"samewise.stored": True}
    assert (store.end_time or 0) - (store.start_time or 0) == pytest.approx(1e7, abs=2e3)


def test_a_divergence_is_an_event_of_its_span(kept: Kept, record: Make, clock: ManualClock) -> None:
    original = kept.tracer.begin({"traceparent": CALLER}, "hit")
    kept.tracer.finish(original, record("hit"))
    told = {"id": "d1", "position": 4, "gap": 0.01, "odd": ["x"]}
    verdict = {"verdict": "divergent", "environment": "e"}
    begun = clock.monotonic()
    kept.tracer.verified(
        Notice(kind="verification", attributes=verdict, detail=told, trace=original, started=begun, duration=0.1)
    )
    (event,) = kept.spans()["verify"].events
    assert event.name == "samewise.divergence"
    assert dict(event.attributes or {}) == {"samewise.id": "d1", "samewise.position": 4, "samewise.gap": 0.01}
