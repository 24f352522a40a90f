"""Receipts: what was answered, in a log of lines that are chained by their hashes and signed one by one.

Each line is one JSON object. `hash` is the SHA-256 over the line before and all other members but `signature`, and
`signature` is made over `hash`: a line that is changed, left out, put in or moved breaks the chain at its place, and
the end of the log can be held against a `hash` that was noted elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from samewise.core import canonical

BEGINNING = "0" * 64
"""What the first line follows."""
FORMAT = 1

Sign = Callable[[bytes], str]
Verify = Callable[[bytes, str], bool]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered. `output` is the hash of what a caller notices (`divergence.digest`), None where the answer
    did not reach its end; `key` is None for an answer that could not be cached. `at` in seconds since the epoch."""

    id: str
    at: float
    cache: str
    family: str
    model: str
    tenant: str
    key: str | None
    environment: str | None
    snapshot: str | None
    request: str
    output: str | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt in the log: its number in it, and what binds it to the line before."""

    number: int
    receipt: Receipt
    previous: str
    hash: str
    signature: str = ""

    def encoded(self) -> bytes:
        """One line, its end included."""
        return canonical.encode({"v": FORMAT, **msgspec.to_builtins(self)}) + b"\n"


class Broken(msgspec.Struct, frozen=True):
    """Where a log is not what was written: `place` counts lines from 1."""

    place: int
    why: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a log came to; `head` is the hash of its last line, to be noted elsewhere."""

    whole: bool
    lines: int
    head: str
    broken: Broken | None = None


def append(previous: Line | None, receipt: Receipt, sign: Sign) -> Line:
    """The line that follows."""
    number = 1 if previous is None else previous.number + 1
    before = BEGINNING if previous is None else previous.hash
    hashed = digest(number, receipt, before)
    return Line(number=number, receipt=receipt, previous=before, hash=hashed, signature=sign(hashed.encode()))


def digest(number: int, receipt: Receipt, previous: str) -> str:
    """64 hex digits over all that a line says but its signature."""
    said = canonical.encode_sorted([FORMAT, number, msgspec.to_builtins(receipt), previous])
    return hashlib.sha256(said).hexdigest()


def parse(line: bytes) -> Line | None:
    """None for what is no line of a log."""
    try:
        value = json.loads(line)
        return msgspec.convert(value, Line) if isinstance(value, dict) and value.get("v") == FORMAT else None
    except (ValueError, msgspec.ValidationError):
        return None


def check(lines: Iterable[bytes], verify: Verify) -> Checked:
    """Whether the log is whole: every line there, in its place, unchanged and signed."""
    before, number = BEGINNING, 0
    for place, raw in enumerate(lines, 1):
        found = parse(raw)
        why = _wrong(found, number, before, verify) if found is not None else "it is no receipt"
        if found is None or why:
            return Checked(whole=False, lines=number, head=before, broken=Broken(place, why))
        before, number = found.hash, found.number
    return Checked(whole=True, lines=number, head=before)


def _wrong(line: Line, number: int, before: str, verify: Verify) -> str:
    if line.number != number + 1:
        return f"it has the number {line.number} in place of {number + 1}"
    if line.previous != before:
        return "it does not follow the line before"
    if digest(line.number, line.receipt, line.previous) != line.hash:
        return "it was changed"
    if not verify(line.hash.encode(), line.signature):
        return "its signature is not ours"
    return ""


def describe(line: Line) -> dict[str, Any]:
    """As JSON values."""
    told: dict[str, Any] = msgspec.to_builtins(line)
    return {**told.pop("receipt"), **told}
