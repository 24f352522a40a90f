"""Whether a recomputation says the same as the record, and where it first does not.

Only what a caller would notice is compared: tokens, text, tool calls, how each choice ended, vectors.
Ids, times, fingerprints, usage and log-probabilities never make two answers different.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from samewise.core import candidates, canonical
from samewise.core.candidates import Candidate
from samewise.core.families.contract import Output

NEAR_TIE_NATS = 0.1
"""Two candidates closer than this are a coin that rounding may toss."""
VECTOR_TOLERANCE = 1e-4
"""Largest difference of two components, as a share of the largest component (at least of 1)."""
MIN_COSINE = 0.9999


class Verdict(StrEnum):
    """An answer is as good as its worst choice."""

    MATCH = "match"
    NEAR_TIE = "near_tie"
    DIVERGENT = "divergent"
    INCONCLUSIVE = "inconclusive"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `position` counts `unit`s of the choice `index`: tokens where both sides have ids, else
    characters, or components of a vector; both None where nothing differs.

    `part` is what differs first: tokens, text, tool_calls, finish_reason, vector or choices. `candidates`
    are the recorded and the recomputed token there, where known; `gap` is the larger of the distances in
    nats between them on the sides that know both, None where none does.
    """

    verdict: Verdict
    index: int | None = None
    part: str | None = None
    position: int | None = None
    unit: str | None = None
    candidates: tuple[Candidate, ...] = ()
    gap: float | None = None
    cosine: float | None = None
    largest_difference: float | None = None


MATCH = Comparison(verdict=Verdict.MATCH)


def compare(
    recorded: Sequence[Output],
    recomputed: Sequence[Output],
    near_tie_nats: float = NEAR_TIE_NATS,
    *,
    vector_tolerance: float = VECTOR_TOLERANCE,
    min_cosine: float = MIN_COSINE,
) -> Comparison:
    """The worst of the choices' comparisons. The verdict is the same whichever side is called recorded.

    A near tie needs log-probabilities of both candidates on one side at least, and all sides that have
    them must agree that they are closer than `near_tie_nats`. Answers with different numbers of choices
    can't be compared.
    """
    ours, theirs = (sorted(side, key=lambda output: output.index) for side in (recorded, recomputed))
    if [output.index for output in ours] != [output.index for output in theirs]:
        return Comparison(verdict=Verdict.INCONCLUSIVE, part="choices")
    worst = MATCH
    for one, other in zip(ours, theirs, strict=True):
        if one.vector is None and other.vector is None:
            found = _choice(one, other, near_tie_nats)
        else:
            found = _vectors(one.index, one.vector or (), other.vector or (), vector_tolerance, min_cosine)
        if _SEVERITY[found.verdict] > _SEVERITY[worst.verdict] or worst is MATCH:
            worst = found
    return worst


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first place at which two sequences differ, None where they are equal.

    Where one begins with all of the other, that is the length of the shorter.
    """
    if type(one) is not type(other):
        one, other = list(one), list(other)
    if one == other:
        return None
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def equal_json(one: str, other: str) -> bool:
    """True for the same JSON value: order of members, white space, escapes and number spelling don't matter."""
    if one == other:
        return True
    try:
        values = [canonical.normalise(json.loads(text)) for text in (one, other)]
        return canonical.encode_sorted(values[0]) == canonical.encode_sorted(values[1])
    except (ValueError, RecursionError):
        return False


_WRITTEN = frozenset({"arguments", "input"})
"""Members of a call that are JSON written as a text."""
_SEVERITY = {Verdict.MATCH: 0, Verdict.NEAR_TIE: 1, Verdict.DIVERGENT: 2}


def _choice(one: Output, other: Output, near_tie_nats: float) -> Comparison:
    if one.token_ids is not None and other.token_ids is not None:
        position = first_difference(one.token_ids, other.token_ids)
        if position is not None:
            return _at(one, "tokens", position, "token", candidates.by_id(one, other, position), nats=near_tie_nats)
    position = first_difference(one.text, other.text)
    if position is not None:
        return _at(one, "text", position, "character", candidates.by_text(one, other, position), nats=near_tie_nats)
    if not _same(list(one.tool_calls), list(other.tool_calls)):
        return _differs(one, "tool_calls", len(one.text), "character")
    if one.finish_reason != other.finish_reason:
        if one.token_ids is not None and other.token_ids is not None:
            return _differs(one, "finish_reason", len(one.token_ids), "token")
        return _differs(one, "finish_reason", len(one.text), "character")
    return MATCH


def _differs(one: Output, part: str, position: int, unit: str) -> Comparison:
    return Comparison(verdict=Verdict.DIVERGENT, index=one.index, part=part, position=position, unit=unit)


def _at(
    one: Output, part: str, position: int, unit: str, found: tuple[Candidate, Candidate], *, nats: float
) -> Comparison:
    gap = candidates.gap(found)
    return Comparison(
        verdict=Verdict.NEAR_TIE if gap is not None and gap < nats else Verdict.DIVERGENT,
        index=one.index,
        part=part,
        position=position,
        unit=unit,
        candidates=found,
        gap=gap,
    )


def _same(one: Any, other: Any, name: str = "") -> bool:
    """Calls by value: absent is null, order of members is none, and written arguments are what they stand for."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(name), other.get(name), name) for name in one | other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, str) and isinstance(other, str) and name in _WRITTEN:
        return equal_json(one, other)
    return type(canonical.normalise(one)) is type(canonical.normalise(other)) and bool(one == other)


def _vectors(
    index: int, ours: tuple[float, ...], theirs: tuple[float, ...], tolerance: float, min_cosine: float
) -> Comparison:
    if len(ours) != len(theirs):
        shorter = min(len(ours), len(theirs))
        return Comparison(verdict=Verdict.DIVERGENT, index=index, part="vector", position=shorter, unit="component")
    apart = [_distance(one, other) for one, other in zip(ours, theirs, strict=True)]
    largest = max(apart, default=0.0)
    if largest == 0.0:
        return MATCH
    cosine = _cosine(ours, theirs)
    scale = max(1.0, *(abs(value) for value in (*ours, *theirs) if math.isfinite(value)))
    close = largest <= tolerance * scale and (len(ours) == 1 or cosine >= min_cosine)
    return Comparison(
        verdict=Verdict.MATCH if close else Verdict.DIVERGENT,
        index=index,
        part=None if close else "vector",
        position=None if close else apart.index(largest),
        unit=None if close else "component",
        cosine=cosine,
        largest_difference=largest,
    )


def _distance(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    cosine = sum(map(operator.mul, one, other)) / length if length else 0.0
    return cosine if math.isfinite(cosine) else 0.0
