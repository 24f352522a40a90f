"""Responses: typed events and the whole response are told as each other; server state is never cached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core.answer import Event, Usage
from samewise.core.families.responses import FAMILY
from samewise.core.reason import Reason
from tests.core.families.support import body, replay, stream, values

COMPLETE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 5,
    "model": "m",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "I thought of it"}],
            "content": [{"type": "reasoning_text", "text": "because of this and that"}],
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "A text of some length", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "not that"},
            ],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": "f",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
    ],
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    },
}
CREATED = {
    "type": "response.created",
    "sequence_number": 0,
    "response": {**COMPLETE, "status": "in_progress", "output": []},
}
COMPLETED = {"type": "response.completed", "sequence_number": 9, "response": COMPLETE}


def test_body_survives_being_told_as_events() -> None:
    events = FAMILY.to_events(body(COMPLETE))
    assert json.loads(FAMILY.to_body(replay(events))) == COMPLETE
    assert FAMILY.failure(replay(events), {}) is None
    assert [event.name for event in events] == [value["type"] for value in values(events)]
    assert [value["sequence_number"] for value in values(events)] == list(range(len(events)))
    assert [FAMILY.ends(event) for event in events] == [False] * (len(events) - 1) + [True]


def test_the_client_library_reads_the_events_and_puts_the_same_response_together() -> None:
    from openai import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    parse = TypeAdapter(ResponseStreamEvent).validate_python
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    texts: dict[str, str] = {}
    for value in values(FAMILY.to_events(body(COMPLETE))):
        event = parse(value)
        state.handle_event(event)
        if event.type.endswith(".delta"):
            texts[event.type] = texts.get(event.type, "") + event.delta  # type: ignore[union-attr,operator]
    assert texts == {
        "response.reasoning_summary_text.delta": "I thought of it",
        "response.reasoning_text.delta": "because of this and that",
        "response.output_text.delta": "A text of some length",
        "response.refusal.delta": "not that",
        "response.function_call_arguments.delta": '{"a": 1}',
    }
    Response.model_validate(COMPLETE)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_any_texts_survive_being_told_as_events(text: str, arguments: str) -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]}
    call = {"type": "function_call", "id": "f", "name": "f", "arguments": arguments}
    answer = {**COMPLETE, "output": [message, call]}
    told = values(FAMILY.to_events(body(answer)))
    for kind, whole in (("output_text", text), ("function_call_arguments", arguments)):
        assert "".join(value["delta"] for value in told if value["type"] == f"response.{kind}.delta") == whole
    assert told[-1]["response"] == answer


def test_output_is_taken_from_the_items_where_the_last_event_has_none() -> None:
    item = {"type": "response.output_item.done", "output_index": 0, "item": COMPLETE["output"][1]}
    last = {**COMPLETED, "response": {**COMPLETE, "output": []}}
    assert json.loads(FAMILY.to_body(stream(CREATED, item, last, names=True)))["output"] == [COMPLETE["output"][1]]


INCOMPLETE = {**COMPLETE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


def test_one_that_reached_its_limit_is_whole() -> None:
    assert FAMILY.failure(body(INCOMPLETE), {}) is None
    events = FAMILY.to_events(body(INCOMPLETE))
    assert events[-1].name == "response.incomplete"
    assert FAMILY.failure(replay(events), {}) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream(CREATED, end=False), Reason.TRUNCATED),
        (stream(CREATED, end=True), Reason.TRUNCATED),
        (stream(CREATED, {"type": "error", "message": "x"}, COMPLETED), Reason.UPSTREAM_ERROR),
        (
            stream(CREATED, {"type": "response.failed", "response": {**COMPLETE, "status": "failed"}}),
            Reason.UPSTREAM_ERROR,
        ),
        (stream(CREATED, {"error": {"message": "x"}}), Reason.UPSTREAM_ERROR),
        (body({**COMPLETE, "status": "failed"}), Reason.UPSTREAM_ERROR),
        (body({**COMPLETE, "error": {"code": "x"}}), Reason.UPSTREAM_ERROR),
        (body({"error": {"message": "x"}}), Reason.UPSTREAM_ERROR),
        (body({**COMPLETE, "status": "in_progress"}), Reason.TRUNCATED),
        (body({**COMPLETE, "status": "queued"}), Reason.TRUNCATED),
        (body({**INCOMPLETE, "incomplete_details": {"reason": "content_filter"}}), Reason.TRUNCATED),
        (replay([Event(b"{", "response.created")]), Reason.TRUNCATED),
    ],
)
def test_nothing_half_is_whole(answer: Any, reason: Reason) -> None:
    assert FAMILY.failure(answer, {}) == reason


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"background": True},
        {"store": True},
        {"prompt": {"id": "pmpt_1"}},
        {"kv_transfer_params": {"do_remote_prefill": True}},
        *({"tools": [{"type": kind}]} for kind in ("web_search", "web_search_preview", "file_search", "mcp", "x")),
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "function"}]},
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
    ],
)
def test_server_state_is_stateful(more: Any) -> None:
    assert FAMILY.refusal({"input": "hi", **more}) == Reason.STATEFUL


@pytest.mark.parametrize(
    "more", [{}, {"store": False}, {"store": None}, {"tools": [{"type": "function", "name": "f"}]}]
)
def test_what_stands_alone_is_not(more: Any) -> None:
    assert FAMILY.refusal({"input": [{"role": "user", "content": "hi"}], "background": False, **more}) is None


def test_usage_and_outputs() -> None:
    for answer in (body(COMPLETE), stream(CREATED, COMPLETED, names=True, end=False)):
        assert FAMILY.usage(answer) == Usage(3, 4, 1)
        output = FAMILY.outputs(answer)[0]
        assert output.text == "I thought of itbecause of this and that\nA text of some lengthnot that"
        assert output.tool_calls == ({"type": "function_call", "name": "f", "arguments": '{"a": 1}'},)
        assert output.finish_reason == "completed"
