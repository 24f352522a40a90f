"""A whole response told as the events that a stream of it would have had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samewise.core.answer import Event
from samewise.core.families import chunks, pieces, typed, wire

_TEXT_OF_PART = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
}
_TEXT_OF_ITEM = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
}


def to_events(response: dict[str, Any]) -> tuple[Event, ...]:
    """From `response.created` to the event that carries the response, numbered from 0."""
    return tuple(typed.event({**value, "sequence_number": at}) for at, value in enumerate(_values(response)))


def _values(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    later: dict[str, Any] = {name: None for name in ("usage", "completed_at", "incomplete_details") if name in response}
    begun = {**response, **later, "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(wire.objects(response.get("output"))):
        yield from _item(index, item)
    ended = "incomplete" if response.get("status") == "incomplete" else "completed"
    yield {"type": f"response.{ended}", "response": response}


def _item(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"output_index": index}
    inside = {"item_id": item.get("id") or "", **place}
    member, prefix = _TEXT_OF_ITEM.get(str(item.get("type")), ("", ""))
    text = item.get(member)
    opening = {name: [] if name in ("content", "summary") and value else value for name, value in item.items()}
    if isinstance(text, str):
        opening[member] = ""
    if "status" in item:
        opening["status"] = "in_progress"
    yield {"type": "response.output_item.added", **place, "item": opening}
    for at, part in enumerate(wire.objects(item.get("summary"))):
        yield from _summary({**inside, "summary_index": at}, part)
    for at, part in enumerate(wire.objects(item.get("content"))):
        yield from _part({**inside, "content_index": at}, part)
    if isinstance(text, str):
        for piece in pieces.pieces(text):
            yield {"type": f"{prefix}.delta", **inside, "delta": piece}
        name = {"name": item["name"]} if member == "arguments" and "name" in item else {}
        yield {"type": f"{prefix}.done", **inside, **name, member: text}
    yield {"type": "response.output_item.done", **place, "item": item}


def _part(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    member, prefix = _TEXT_OF_PART.get(str(part.get("type")), ("", ""))
    text = part.get(member)
    opening = dict(part)
    if isinstance(text, str):
        opening |= {member: "", **{name: [] for name in ("annotations", "logprobs") if part.get(name)}}
    yield {"type": "response.content_part.added", **place, "part": opening}
    if isinstance(text, str):
        scored = prefix == "response.output_text"
        logprobs = wire.objects(part.get("logprobs")) if scored else []
        for piece, told in _pieces(text, logprobs):
            yield {"type": f"{prefix}.delta", **place, "delta": piece, **({"logprobs": told} if scored else {})}
        for at, annotation in enumerate(wire.objects(part.get("annotations"))):
            numbered = {"annotation_index": at, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **place, **numbered}
        yield {"type": f"{prefix}.done", **place, member: text, **({"logprobs": logprobs} if scored else {})}
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text")
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    if isinstance(text, str):
        for piece in pieces.pieces(text):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _pieces(text: str, logprobs: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    cut = chunks.aligned(text, chunks.chat_tokens({"content": logprobs}), None)
    if cut is not None:
        return [(piece, logprobs[start:end]) for piece, start, end in cut]
    found: list[tuple[str, list[dict[str, Any]]]] = [(piece, []) for piece in pieces.pieces(text)]
    if found:
        found[-1] = (found[-1][0], logprobs)
    return found
