"""One spelling for every JSON value, the same on every Python, process and machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

LARGE = 128 << 10
"""Bytes of a body, about 32,000 tokens, from which it is worth while to let others run beside the work on it."""
_EXACT = 2**53
_STEP = 1 << 16
_ITEMS = 1 << 12
_SHORT = 1 << 10


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def normalise(value: Any) -> Any:
    """The value with one spelling a number: 1.0 and 1e0 become 1, -0.0 becomes 0. Order is kept."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {name: normalise(item) for name, item in value.items()}
    if isinstance(value, list):
        return [normalise(item) for item in value]
    return value


def encode(value: Any) -> bytes:
    """Compact JSON in the order given. Lone surrogates survive, so that two texts never join."""
    return _encode(value).encode("utf-8", "surrogatepass")


def encode_large(value: Any) -> bytes:
    """As `encode`, byte for byte, in steps of less than a millisecond, between which other threads may run."""
    return b"".join(_steps(value))


def _steps(value: Any) -> Iterator[bytes]:
    match value:
        case str() if len(value) > _STEP:
            yield b'"'
            for start in range(0, len(value), _STEP):
                yield encode(value[start : start + _STEP])[1:-1]
            yield b'"'
        case dict() if value:
            before = b"{"
            for name, item in value.items():
                yield before + encode(name) + b":"
                yield from _steps(item)
                before = b","
            yield b"}"
        case list() if value:
            before = b"["
            for start in range(0, len(value), _ITEMS):
                items = value[start : start + _ITEMS]
                if _all_short(items):
                    yield before + encode(items)[1:-1]
                    before = b","
                    continue
                for item in items:
                    yield before
                    yield from _steps(item)
                    before = b","
            yield b"]"
        case _:
            yield encode(value)


def _all_short(items: list[Any]) -> bool:
    kinds = set(map(type, items))
    return kinds.isdisjoint((dict, list)) and (str not in kinds or max(map(len, filter(_is_text, items))) <= _SHORT)


def _is_text(item: Any) -> bool:
    return isinstance(item, str)


def encode_sorted(value: Any) -> bytes:
    """Compact JSON with the members of every object in the order of their names."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return text.encode("utf-8", "surrogatepass")


def sha256(data: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(data).hexdigest()
