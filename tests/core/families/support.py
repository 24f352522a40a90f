"""Answers in both forms, and what callers make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from samewise.core.answer import DONE, Answer, Event


def body(value: Any) -> Answer:
    """A recorded JSON answer."""
    return Answer(form="json", body=json.dumps(value).encode())


def stream(*values: Any, end: bool = True, names: bool = False) -> Answer:
    """A recorded stream; `end` adds `[DONE]`, `names` takes each event's name from its type."""
    events = tuple(Event(json.dumps(value).encode(), value["type"] if names else None) for value in values)
    return Answer(form="sse", events=(*events, Event(DONE)) if end else events)


def replay(events: Iterable[Event]) -> Answer:
    """These events as a recorded stream."""
    return Answer(form="sse", events=tuple(events))


def values(events: Iterable[Event]) -> list[Any]:
    """What the events carry, without `[DONE]`."""
    return [json.loads(event.data) for event in events if event.data != DONE]


def chunk(delta: dict[str, Any] | None = None, *, index: int = 0, **more: Any) -> dict[str, Any]:
    """A chat chunk with one choice; `more` goes to the choice."""
    choice = {"index": index, "delta": delta or {}, "finish_reason": None, **more}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}


def usage_chunk(**counts: Any) -> dict[str, Any]:
    """A chunk without choices that tells the usage."""
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return {**head, "choices": [], "usage": counts or {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
