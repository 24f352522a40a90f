"""One spelling for every JSON value, the same on every Python, process and machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_EXACT = 2**53


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
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def encode_sorted(value: Any) -> bytes:
    """Compact JSON with the members of every object in the order of their names."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return text.encode("utf-8", "surrogatepass")


def sha256(data: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(data).hexdigest()
