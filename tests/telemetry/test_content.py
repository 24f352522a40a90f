"""Prompts and answers as attributes, in the shapes of the GenAI semantic conventions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from samewise.core.families.contract import Output
from samewise.ports import Content, Record
from samewise.telemetry import Telemetry
from samewise.telemetry.content import attributes

Make = Callable[..., Record]
SAID = Output(index=0, text="hello", finish_reason="stop")


def told(asked: dict[str, Any], *outputs: Output) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in attributes(Content(asked, lambda: outputs)).items()}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def test_a_chat_has_its_messages_calls_and_results() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    asked = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "data:,"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    found = told(asked, SAID, Output(index=1, text="", tool_calls=({"function": {"name": "g"}},)))
    assert found["gen_ai.input.messages"] == [
        {"role": "system", "parts": [text("be brief")]},
        {"role": "user", "parts": [text("hi"), {"type": "image_url", "image_url": "data:,"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"x":1}'}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "42"}]},
    ]
    assert found["gen_ai.output.messages"] == [
        {"role": "assistant", "parts": [text("hello")], "finish_reason": "stop"},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": None, "name": "g", "arguments": None}],
            "finish_reason": "",
        },
    ]
    assert found["gen_ai.tool.definitions"] == asked["tools"]


@pytest.mark.parametrize(
    ("asked", "messages", "instructions"),
    [
        ({"prompt": "once"}, [{"role": "user", "parts": [text("once")]}], None),
        ({"prompt": ["a", "b"]}, [{"role": "user", "parts": [text("a"), text("b")]}], None),
        ({"input": "hi", "instructions": "be brief"}, [{"role": "user", "parts": [text("hi")]}], [text("be brief")]),
        (
            {"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "hi"}]},
            [{"role": "user", "parts": [text("hi")]}],
            [text("s")],
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "42"}]},
            [{"role": "user", "parts": [{"type": "tool_call_response", "id": "c", "response": "42"}]}],
            None,
        ),
        ({"model": "m"}, None, None),
        (
            {"messages": [1, {"role": 7}]},
            [{"role": "user", "parts": [text("1"), {"type": "unknown", "role": 7}]}],
            None,
        ),
    ],
)
def test_every_way_to_ask_is_told(
    asked: dict[str, Any], messages: list[dict[str, Any]] | None, instructions: list[dict[str, Any]] | None
) -> None:
    found = told(asked)
    assert found.get("gen_ai.input.messages") == messages
    assert found.get("gen_ai.system_instructions") == instructions
    assert "gen_ai.output.messages" not in found


def test_what_operators_look_at_has_none_of_it(observer: Telemetry, record: Make) -> None:
    observer.finish(observer.begin({}, "x"), record("miss", content=Content({"prompt": "secret"}, lambda: [SAID])))
    assert observer.recent.records()[0].record == record("miss")
    assert "secret" not in json.dumps(observer.recent.told())
