"""A message and the events of its stream: each told as the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from samewise.core.answer import Event
from samewise.core.families import pieces, typed, wire

_TEXT_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}
_MEMBER_OF = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def to_body(values: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The message that typed events add up to. Raises ValueError where a tool's input is no JSON."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for kind, value in values:
        index = wire.number(value.get("index"))
        match kind:
            case "message_start":
                message = {"type": "message", "role": "assistant", **wire.mapping(value.get("message"))}
            case "content_block_start":
                blocks[index] = dict(wire.mapping(value.get("content_block")))
            case "content_block_delta":
                _add(blocks.setdefault(index, {}), inputs, index, wire.mapping(value.get("delta")))
            case "message_delta":
                message |= wire.mapping(value.get("delta"))
                _count(message, wire.mapping(value.get("usage")))
            case _:
                pass
    for index, text in inputs.items():
        if text:
            blocks[index]["input"] = wire.load(text)
    return {**message, "content": [blocks[index] for index in sorted(blocks)]}


def to_events(message: dict[str, Any]) -> tuple[Event, ...]:
    """From `message_start` to `message_stop`."""
    return tuple(typed.event(value) for value in _values(message))


def _values(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    usage = wire.mapping(message.get("usage"))
    early = {name: 0 if name == "output_tokens" else value for name, value in usage.items()}
    ending = {name: value for name, value in message.items() if name in ("stop_reason", "stop_sequence")}
    ended = {name: message[name] for name in ("container", "stop_details") if name in message}
    start = {**message, "content": [], **dict.fromkeys(ending | ended)}
    yield {"type": "message_start", "message": {**start, "usage": early} if usage else start}
    for index, block in enumerate(wire.objects(message.get("content"))):
        yield from _block(index, block)
    counted = {"usage": usage} if usage else {}
    yield {"type": "message_delta", "delta": {**ending, **ended}, **counted}
    yield {"type": "message_stop"}


def _block(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    opening, deltas = dict(block), []
    for member, kind in _TEXT_DELTAS.items():
        if isinstance(block.get(member), str):
            opening[member] = ""
            deltas += [{"type": kind, member: piece} for piece in pieces.pieces(block[member])]
    if block.get("type") == "tool_use" and block.get("input"):
        opening["input"] = {}
        text = wire.dump(block["input"]).decode()
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces.pieces(text)]
    if block.get("citations"):
        opening["citations"] = []
        deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
    if block.get("signature"):
        opening["signature"] = ""
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    yield {"type": "content_block_start", "index": index, "content_block": opening}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _add(block: dict[str, Any], inputs: dict[int, str], index: int, delta: dict[str, Any]) -> None:
    kind = delta.get("type")
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + str(delta.get("partial_json") or "")
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
    elif kind in _MEMBER_OF:
        member = _MEMBER_OF[kind]
        block[member] = str(block.get(member) or "") + str(delta.get(member) or "")
    else:
        for name, value in delta.items():
            if name != "type" and isinstance(value, str):
                block[name] = str(block.get(name) or "") + value


def _count(message: dict[str, Any], usage: dict[str, Any]) -> None:
    """Counts of a message_delta are totals so far: they replace what was told at the start."""
    if usage:
        known = wire.mapping(message.get("usage"))
        message["usage"] = {**known, **{name: value for name, value in usage.items() if value is not None}}
