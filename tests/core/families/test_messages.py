"""Messages: typed events and the whole message are told as each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core.answer import Event, Usage
from samewise.core.families.messages import FAMILY
from samewise.core.reason import Reason
from tests.core.families.support import body, replay, stream, values

COMPLETE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "let me think of it", "signature": "sig"},
        {"type": "text", "text": "An answer of some length", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"zebra": 1, "apple": ["x", {"y": None}]}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 9, "cache_read_input_tokens": 2},
}
START = {"type": "message_start", "message": {**COMPLETE, "content": [], "stop_reason": None}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
CLOSE = {"type": "content_block_stop", "index": 0}
DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 12}}
STOP = {"type": "message_stop"}
PING = {"type": "ping"}


def test_body_survives_being_told_as_events() -> None:
    events = FAMILY.to_events(body(COMPLETE))
    told = json.loads(FAMILY.to_body(replay(events)))
    assert told == COMPLETE
    assert list(told["content"][2]["input"]) == ["zebra", "apple"]
    assert FAMILY.failure(replay(events), {}) is None
    assert [FAMILY.ends(event) for event in events] == [False] * (len(events) - 1) + [True]
    assert [event.name for event in events] == [value["type"] for value in values(events)]


def test_the_client_library_puts_the_same_message_together() -> None:
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    parse = TypeAdapter(RawMessageStreamEvent).validate_python
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    deltas = 0
    for value in values(FAMILY.to_events(body(COMPLETE))):
        deltas += value["type"] == "content_block_delta"
        snapshot = accumulate_event(event=parse(value), current_snapshot=snapshot, json_bufs=buffers)
    assert deltas >= 7
    expected = Message.model_validate(COMPLETE)
    assert snapshot.model_dump(include={"content", "usage", "stop_reason"}, exclude_unset=True) == expected.model_dump(
        include={"content", "usage", "stop_reason"}, exclude_unset=True
    )


@settings(deadline=None)
@given(
    st.text(st.characters(codec="utf-8")),
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.integers() | st.text(st.characters(codec="utf-8"))
    ),
)
def test_any_content_survives_being_told_as_events(text: str, given_input: dict[str, Any]) -> None:
    content = [{"type": "text", "text": text}, {"type": "tool_use", "id": "t", "name": "f", "input": given_input}]
    answer = {**COMPLETE, "content": content}
    assert json.loads(FAMILY.to_body(replay(FAMILY.to_events(body(answer))))) == answer


def test_pings_are_noise_and_say_nothing() -> None:
    live = stream(START, PING, BLOCK, TEXT, PING, CLOSE, DELTA, STOP, names=True, end=False)
    kept = replay(event for event in live.events if not FAMILY.noise(event))
    assert len(kept.events) == 6
    assert FAMILY.failure(kept, {}) is None
    assert FAMILY.to_body(kept) == FAMILY.to_body(live)
    assert FAMILY.usage(live) == Usage(5, 12, 2)
    output = FAMILY.outputs(live)[0]
    assert (output.text, output.finish_reason) == ("hi", "end_turn")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream(START, BLOCK, TEXT, CLOSE, DELTA, end=False), Reason.TRUNCATED),
        (stream(START, BLOCK, TEXT, DELTA, STOP, end=False), Reason.TRUNCATED),
        (stream(START, BLOCK, TEXT, CLOSE, STOP, end=False), Reason.TRUNCATED),
        (stream(BLOCK, TEXT, CLOSE, DELTA, STOP, end=False), Reason.TRUNCATED),
        (stream(START, BLOCK, {"type": "error", "error": {"type": "overloaded_error"}}, STOP), Reason.UPSTREAM_ERROR),
        (stream(START, BLOCK, TEXT, CLOSE, DELTA, STOP, {"error": {"message": "x"}}), Reason.UPSTREAM_ERROR),
        (replay([Event(b"{", "message_start")]), Reason.TRUNCATED),
        (body({**COMPLETE, "stop_reason": None}), Reason.TRUNCATED),
        (body({**COMPLETE, "stop_reason": "pause_turn"}), Reason.TRUNCATED),
        (body({"type": "error", "error": {"type": "api_error"}}), Reason.UPSTREAM_ERROR),
    ],
)
def test_nothing_half_is_whole(answer: Any, reason: Reason) -> None:
    assert FAMILY.failure(answer, {}) == reason


def test_a_tool_input_that_is_cut_is_truncated() -> None:
    use = {**BLOCK, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}
    part = {**TEXT, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}}
    assert FAMILY.failure(stream(START, use, part, CLOSE, DELTA, STOP, names=True), {}) == Reason.TRUNCATED


def test_a_final_done_is_tolerated() -> None:
    assert FAMILY.failure(stream(START, BLOCK, TEXT, CLOSE, DELTA, STOP, names=True, end=True), {}) is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"container": "c"}, Reason.STATEFUL),
        ({"mcp_servers": [{"url": "x"}]}, Reason.STATEFUL),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, Reason.STATEFUL),
        ({"tools": [{"type": "code_execution_20250825", "name": "x"}]}, Reason.STATEFUL),
        ({"tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}, None),
        ({"tools": [{"type": "custom", "name": "f"}]}, None),
        ({"mcp_servers": [], "container": None}, None),
    ],
)
def test_server_state(more: Any, reason: Reason | None) -> None:
    assert FAMILY.refusal({"messages": [], **more}) == reason
