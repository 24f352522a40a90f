"""JSON as upstreams write it: fast where it is ordinary, exact where it is odd."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from samewise.core.answer import DONE, Event

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def load(data: bytes | str) -> Any:
    """The value. Half surrogate pairs, which a stream may split over two chunks, are kept as they are.

    Raises ValueError where it is not JSON; NaN and Infinity are not, nor is what is nested too deeply to be read.
    """
    try:
        try:
            return _decode(data)
        except msgspec.DecodeError:
            return json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load_object(data: bytes | str) -> dict[str, Any]:
    """A JSON object; raises ValueError for anything else."""
    value = load(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def peek(event: Event) -> dict[str, Any] | None:
    """The event's object, None where it carries none."""
    if event.data == DONE:
        return None
    try:
        value = load(event.data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def dump(value: Any) -> bytes:
    """Compact JSON in the order given. Halves of a surrogate pair that met again become one character."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def event(value: Any, name: str | None = None) -> Event:
    """An event that carries this value."""
    return Event(dump(value), name)


def number(value: Any) -> int:
    """A count, 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def mapping(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, nothing for what is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_noise(event: Event) -> bool:
    """True for keep-alives: an event called ping, or one without data."""
    return event.name == "ping" or not event.data


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
