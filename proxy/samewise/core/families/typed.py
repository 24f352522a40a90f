"""What responses and messages share: streams of events that name their type, in `event:` and in the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from samewise.core.answer import DONE, Event
from samewise.core.families import wire

ERROR = "error"


def kind(event: Event) -> str:
    """The type of an event: its `event:` field, else the `type` of its data; empty where it tells none."""
    if event.name:
        return event.name
    told = (wire.peek(event) or {}).get("type")
    return told if isinstance(told, str) else ""


def is_kind(event: Event, kinds: frozenset[str]) -> bool:
    """True for an event of one of these types. Data is parsed only where it could be one of them."""
    if event.name:
        return event.name in kinds
    return any(kind.encode() in event.data for kind in kinds) and kind(event) in kinds


def values(events: Iterable[Event]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Type and data of each event, without keep-alives and a final `[DONE]`. Raises ValueError for other data."""
    for event in events:
        if event.data == DONE or wire.is_noise(event):
            continue
        value = wire.load_object(event.data)
        told = value.get("type")
        yield told if isinstance(told, str) else event.name or "", value


def event(value: dict[str, Any]) -> Event:
    """An event named by the type of its data."""
    return wire.event(value, value["type"])
