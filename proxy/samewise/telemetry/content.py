"""What was asked and answered, as attributes of a span: in JSON, as the GenAI semantic conventions (1.44) shape it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from samewise.core.families.contract import Output
from samewise.ports import Content

_QUESTIONS = ("messages", "input", "prompt", "query", "text_1")
"""The members that ask; a body has one of them."""
_INSTRUCTIONS = ("instructions", "system")


def attributes(content: Content) -> dict[str, str]:
    """`gen_ai.input.messages`, `gen_ai.output.messages` and what stands beside them, each where there is any."""
    asked = content.asked
    told = {
        "gen_ai.input.messages": _messages(next((asked[name] for name in _QUESTIONS if asked.get(name)), None)),
        "gen_ai.system_instructions": _parts(next((asked[name] for name in _INSTRUCTIONS if asked.get(name)), None)),
        "gen_ai.tool.definitions": asked.get("tools"),
        "gen_ai.output.messages": [_answer(output) for output in content.outputs() if output.text or output.tool_calls],
    }
    return {name: msgspec.json.encode(value, enc_hook=str).decode() for name, value in told.items() if value}


def _messages(asked: Any) -> list[dict[str, Any]]:
    items = asked if isinstance(asked, list) and all(isinstance(item, dict) for item in asked) else [asked]
    return [_message(item) for item in items if item is not None]


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        return {"role": "user", "parts": _parts(item)}
    role = item.get("role")
    if not isinstance(role, str):
        return {"role": "user", "parts": [_part(item)]}
    content = item.get("content")
    if role == "tool":
        return {"role": role, "parts": [_response(item.get("tool_call_id"), content)]}
    calls = item.get("tool_calls")
    called = [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return {"role": role, "parts": [*_parts(content), *called]}


def _parts(content: Any) -> list[dict[str, Any]]:
    items = content if isinstance(content, list) else [content]
    return [_part(item) for item in items if item is not None]


def _part(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        return _text(item if isinstance(item, str) else msgspec.json.encode(item, enc_hook=str).decode())
    match item.get("type"):
        case "text" | "input_text" | "output_text" if isinstance(item.get("text"), str):
            return _text(item["text"])
        case "tool_use" | "function_call":
            return _call(item)
        case "tool_result":
            return _response(item.get("tool_use_id"), item.get("content"))
        case "function_call_output":
            return _response(item.get("call_id"), item.get("output"))
        case str():
            return item
        case _:
            return {"type": "unknown", **item}


def _answer(output: Output) -> dict[str, Any]:
    parts = [_text(output.text)] if output.text else []
    calls = [_call(call) for call in output.tool_calls]
    return {"role": "assistant", "parts": [*parts, *calls], "finish_reason": output.finish_reason or ""}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    told = function if isinstance(function, Mapping) else call
    arguments = told.get("arguments", told.get("input"))
    return {
        "type": "tool_call",
        "id": call.get("id") or call.get("call_id"),
        "name": told.get("name"),
        "arguments": arguments,
    }


def _response(identity: Any, content: Any) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": identity, "response": content}
