"""A recorded answer with all that it takes to trust it; `codec` says how it is written down."""

from __future__ import annotations

from typing import Any

import msgspec

from samewise.core.answer import Answer, Usage

FORMAT = 1
"""Version of the wire form; another one is refused, never guessed at."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded answer. `key` is the full key that it belongs to; under any other it is refused.

    `created` is in seconds since the epoch, `ttl` in seconds; `began` is the number of the last
    control event that the filling request knew (an invalidation with a higher one ends the entry);
    `request` is the effective request as canonical JSON, from which the answer can be asked again.
    """

    key: str
    created: float
    ttl: float
    began: int
    tenant: str
    family: str
    model: str
    environment: str
    snapshot: str
    request: bytes
    answer: Answer
    usage: Usage = Usage()
    tags: tuple[str, ...] = ()
    sample: int = 0
    seed: int | None = None
    verified: int = 0
    instance: str | None = None
    concurrency: int = 1
    extra: dict[str, Any] = {}

    def same(self, other: Entry) -> bool:
        """True where both are one recording, however often it was verified since."""
        return self.key == other.key and self.created == other.created and self.began == other.began

    def age(self, now: float) -> float:
        """Seconds since it was recorded, never negative."""
        return max(0.0, now - self.created)

    def fresh(self, now: float) -> bool:
        """True until `ttl` seconds have passed."""
        return now - self.created < self.ttl


class EntryRefused(Exception):
    """Bytes that are not an entry of this format under this key; `kind` is a word for the counter."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
