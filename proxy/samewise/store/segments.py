"""Long values in pieces: a head under the entry's own name, and segments that belong to one writing alone.

The head is `SWS1 TOKEN COUNT SIZE`: a token that no other writing has, how many segments there are, and the bytes
of all together. It is put in place when the segments are there, and a value is whole only where every segment of
the head's token is there and the sizes agree; that its bytes are those of this entry is what the codec checks.
Other releases refuse a head as they refuse any entry of another format.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

MISSING = "segment"
"""The word for a value of which a segment is missing, or of another size: a miss, and counted."""
_HEAD = re.compile(rb"SWS1 ([0-9a-f]{32}) ([1-9][0-9]{0,5}) ([1-9][0-9]{0,11})")


class Head(NamedTuple):
    """Which segments make a value, and how many bytes it has."""

    token: str
    parts: int
    size: int

    def write(self) -> bytes:
        return f"SWS1 {self.token} {self.parts} {self.size}".encode()


class Cut(NamedTuple):
    """A value as it is stored: what stands under the entry's own name, and its segments, none where it is short."""

    value: bytes
    token: str
    parts: Sequence[bytes]


def cut(data: bytes, size: int) -> Cut:
    """In segments of `size` bytes where it has more than that; 0: in one piece always."""
    if not 0 < size < len(data):
        return Cut(data, "", ())
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    head = Head(secrets.token_hex(16), len(parts), len(data))
    return Cut(head.write(), head.token, parts)


def head(value: bytes) -> Head | None:
    """None where the value stands for itself."""
    found = _HEAD.fullmatch(value) if len(value) <= len(b"SWS1 ") + 32 + 20 else None
    return None if found is None else Head(found[1].decode(), int(found[2]), int(found[3]))


def whole(told: Head, parts: Sequence[bytes | None]) -> bytes | None:
    """The value; None where it isn't all there."""
    there = [part for part in parts if part is not None]
    data = b"".join(there)
    return data if len(there) == told.parts and len(data) == told.size else None
