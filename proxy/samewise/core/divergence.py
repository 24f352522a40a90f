"""The record of a recomputation that did not agree: what operators see of it, and what hooks are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from samewise.core import canonical
from samewise.core.candidates import Candidate
from samewise.core.compare import Comparison
from samewise.core.families.contract import Output
from samewise.core.layers import Layer, Ran

Outcome = Literal["match", "near_tie", "divergent", "flaky", "inconclusive"]
"""A verdict, or `flaky`: it differed once and not again."""
COUNTED: dict[Outcome, str] = {
    "match": "match",
    "near_tie": "near_tie",
    "divergent": "divergent",
    "flaky": "inconclusive",
    "inconclusive": "inconclusive",
}
"""The verdict under which each is counted."""


class Side(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the two outputs: the choice that differs. `digest` is that of all choices; where outputs are kept as
    digests, there is no `text` and no `token_ids`. `at` in seconds since the epoch."""

    digest: str
    finish_reason: str | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    cached_tokens: int | None = None
    concurrency: int | None = None
    instance: str | None = None
    at: float = 0.0


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """`position` counts `unit`s of the choice `index`. `instance` is the one to blame where that is known (`odd`:
    the upstreams that a majority of the others contradicts), else the one that recomputed."""

    id: str
    key: str
    verdict: Outcome
    at: float
    tenant: str
    family: str
    model: str
    environment: str
    instance: str | None
    cached: Side
    recomputed: Side
    index: int | None = None
    part: str | None = None
    position: int | None = None
    unit: str | None = None
    candidates: tuple[Candidate, ...] = ()
    gap: float | None = None
    cosine: float | None = None
    largest_difference: float | None = None
    layer: Layer = "unknown"
    odd: tuple[str, ...] = ()
    runs: tuple[Ran, ...] = ()
    action: str = ""

    def brief(self) -> dict[str, Any]:
        """The row of a listing."""
        names = ("id", "key", "verdict", "position", "model", "environment", "instance", "at", "layer", "gap", "tenant")
        return {name: getattr(self, name) for name in names}

    def encoded(self) -> bytes:
        """For the store; `decoded` reads it."""
        return _encoder.encode(self)


def decoded(data: bytes) -> Divergence | None:
    """None for what is no such record."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def digest(outputs: Sequence[Output]) -> str:
    """64 hex digits over what a caller would notice: texts, calls, how they ended, vectors."""
    said = [
        [
            output.index,
            output.text,
            list(output.tool_calls),
            output.finish_reason,
            output.vector and list(output.vector),
        ]
        for output in outputs
    ]
    return canonical.sha256(canonical.encode(_spelt(canonical.normalise(said))))


def side(
    outputs: Sequence[Output],
    found: Comparison,
    *,
    full: bool,
    at: float,
    cached_tokens: int | None,
    concurrency: int | None,
    instance: str | None,
) -> Side:
    """What one side of a comparison said; `full` False keeps no text."""
    shown = next((output for output in outputs if output.index == (found.index or 0)), None)
    words = shown if full else None
    return Side(
        digest=digest(outputs),
        finish_reason=shown.finish_reason if shown else None,
        text=words.text if words else None,
        token_ids=words.token_ids if words else None,
        tokens=words.tokens if words else None,
        tool_calls=words.tool_calls if words else (),
        cached_tokens=cached_tokens,
        concurrency=concurrency,
        instance=instance,
        at=at,
    )


def _spelt(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _spelt(item) for name, item in value.items()}
    return [_spelt(item) for item in value] if isinstance(value, list | tuple) else value


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Divergence)
