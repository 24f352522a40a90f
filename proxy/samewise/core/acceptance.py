"""Whether a backend says the same each time: what is asked how often, and what the answers come to. Pure.

Each prompt is repeated at each concurrency; streamed or not and with a cold or a warm prefix cache take turns.
All answers of one prompt in one environment are held against the first, which was asked alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from samewise.core import canonical, compare
from samewise.core.compare import Comparison, Verdict
from samewise.core.families.contract import Output
from samewise.core.prompts import Prompt

REPEAT = 50
CONCURRENCY = (1, 8, 32)
TOLD = 200
"""Disagreements that a report describes; the rest are counted."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be made while `concurrency` are under way."""

    prompt: Prompt
    concurrency: int
    stream: bool
    warm: bool


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: `outputs`, or a `failure`. `cached_tokens` None where the server doesn't tell."""

    asking: Asking
    environment: str = ""
    member: str = ""
    outputs: tuple[Output, ...] = ()
    cached_tokens: int | None = None
    failure: str = ""


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is not the first one. `position` counts `unit`s; `gap` is in nats, None where unknown."""

    prompt: str
    environment: str
    member: str
    concurrency: int
    stream: bool
    warm: bool
    cached_tokens: int | None
    part: str | None
    position: int | None
    unit: str | None
    gap: float | None
    tokens: tuple[str, ...]
    hash: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt in one environment. `closest`: the smallest gap in nats between the best two tokens at any place."""

    prompt: str
    environment: str
    answers: int
    hashes: dict[str, int]
    disagreements: int
    failures: int
    closest: float | None
    members: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`agreed` is True only where every prompt was answered each time, and each time the same."""

    agreed: bool
    model: str
    answers: int
    failures: int
    disagreed: int
    rows: tuple[Row, ...]
    disagreements: tuple[Disagreement, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The figures alone."""
        gaps = [each.gap for each in self.disagreements if each.gap is not None]
        return {
            "agreed": self.agreed,
            "answers": self.answers,
            "failures": self.failures,
            "disagreements": self.disagreed,
            "prompts": len({row.prompt for row in self.rows}),
            "largest_gap": max(gaps, default=None),
        }


def schedule(prompts: Sequence[Prompt], repeat: int, concurrencies: Sequence[int]) -> Iterator[tuple[Asking, ...]]:
    """One round for each concurrency, the lowest first. Prompts are mixed, so that they meet in batches."""
    for concurrency in sorted(set(concurrencies)):
        yield tuple(
            Asking(
                prompt=prompt,
                concurrency=concurrency,
                stream=bool(((turn + place) if turn else 0) % 2),
                warm=bool(((turn + place) // 2 if turn else 0) % 2),
            )
            for turn in range(repeat)
            for place, prompt in enumerate(prompts)
        )


def digest(outputs: Sequence[Output]) -> str:
    """16 hex digits over the token ids, or the text where there are none, and over calls and endings."""
    said = [
        [output.index, output.token_ids or output.text, list(output.tool_calls), output.finish_reason]
        for output in outputs
    ]
    return canonical.sha256(canonical.encode(canonical.normalise(said)))[:16]


class Judge:
    """Takes samples in the order in which they were asked for; `report` may be called at any time."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._first: dict[tuple[str, str], Sample] = {}
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._told: list[Disagreement] = []
        self._disagreed = 0
        self._errors: dict[str, None] = {}
        self.answers = 0
        self.failures = 0

    def add(self, sample: Sample) -> None:
        """One more answer, or failure."""
        place = (sample.asking.prompt.name, sample.environment)
        tally = self._tallies.setdefault(place, _Tally())
        tally.members.setdefault(sample.member)
        if sample.failure:
            self.failures += 1
            tally.failures += 1
            self._errors.setdefault(sample.failure)
            return
        self.answers += 1
        first = self._first.setdefault(place, sample)
        found = compare.compare(first.outputs, sample.outputs)
        hashed = digest(sample.outputs)
        tally.hashes[hashed] = tally.hashes.get(hashed, 0) + 1
        gap = closest(sample.outputs)
        if gap is not None and (tally.closest is None or gap < tally.closest):
            tally.closest = gap
        if found.verdict is not Verdict.MATCH:
            self._disagreed += 1
            tally.disagreements += 1
            if len(self._told) < TOLD:
                self._told.append(_disagreement(sample, found, hashed))

    def report(self, notes: Sequence[str] = ()) -> Report:
        """What it comes to so far."""
        rows = tuple(
            Row(
                prompt=prompt,
                environment=environment,
                answers=sum(tally.hashes.values()),
                hashes=dict(tally.hashes),
                disagreements=tally.disagreements,
                failures=tally.failures,
                closest=tally.closest,
                members=tuple(member for member in tally.members if member),
            )
            for (prompt, environment), tally in self._tallies.items()
        )
        return Report(
            agreed=self.answers > 0 and not self._disagreed and not self.failures,
            model=self._model,
            answers=self.answers,
            failures=self.failures,
            disagreed=self._disagreed,
            rows=rows,
            disagreements=tuple(self._told),
            errors=tuple(self._errors)[:20],
            notes=tuple(notes),
        )


class _Tally:
    def __init__(self) -> None:
        self.hashes: dict[str, int] = {}
        self.members: dict[str, None] = {}
        self.disagreements = 0
        self.failures = 0
        self.closest: float | None = None


def closest(outputs: Sequence[Output]) -> float | None:
    """The smallest distance in nats between the two likeliest tokens at any place, None where it isn't told."""
    gaps = []
    for output in outputs:
        for place in output.candidates or ():
            best = sorted(place.values(), reverse=True)[:2]
            if len(best) == 2:
                gaps.append(best[0] - best[1])
    return min(gaps, default=None)


def _disagreement(sample: Sample, found: Comparison, hashed: str) -> Disagreement:
    asking = sample.asking
    return Disagreement(
        prompt=asking.prompt.name,
        environment=sample.environment,
        member=sample.member,
        concurrency=asking.concurrency,
        stream=asking.stream,
        warm=asking.warm,
        cached_tokens=sample.cached_tokens,
        part=found.part,
        position=found.position,
        unit=found.unit,
        gap=found.gap,
        tokens=tuple(
            candidate.token or (f"#{candidate.token_id}" if candidate.token_id is not None else "")
            for candidate in found.candidates
        ),
        hash=hashed,
    )
