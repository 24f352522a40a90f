"""The bounded, durable list of recomputations that did not agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from samewise.core.divergence import Divergence, decoded, side
from samewise.core.entry import Entry
from samewise.core.families.registry import BY_NAME
from samewise.pipeline.verify.judge import Finding
from samewise.pipeline.verify.recompute import cached_tokens
from samewise.ports import Clock, Records

KIND = "divergence"


class Book:
    """All but `write` of a finding without a recomputation may raise StoreUnavailable."""

    def __init__(self, records: Records, clock: Clock, *, keep: int, full: bool, ids: Callable[[], str]) -> None:
        """`keep`: so many, the newest. `full`: the texts too, not their digests alone."""
        self._records = records
        self._clock = clock
        self._keep = keep
        self._full = full
        self._ids = ids

    async def write(self, entry: Entry, finding: Finding, action: str) -> str:
        """Keep it; its id. Empty where there is nothing to keep."""
        run, family = finding.shown, BY_NAME.get(entry.family)
        if run is None or family is None:
            return ""
        found = finding.comparison
        divergence = Divergence(
            id=self._ids(),
            key=entry.key,
            verdict=finding.outcome,
            at=self._clock.now(),
            tenant=entry.tenant,
            family=entry.family,
            model=entry.model,
            environment=entry.environment,
            instance=finding.odd[0] if finding.odd else run.instance or run.member,
            cached=side(
                tuple(family.outputs(entry.answer)),
                found,
                full=self._full,
                at=entry.created,
                cached_tokens=cached_tokens(family, entry.answer),
                concurrency=entry.concurrency,
                instance=entry.instance,
            ),
            recomputed=side(
                run.outputs,
                found,
                full=self._full,
                at=run.at,
                cached_tokens=run.cached_tokens,
                concurrency=run.concurrency,
                instance=run.instance or run.member,
            ),
            index=found.index,
            part=found.part,
            position=found.position,
            unit=found.unit,
            candidates=found.candidates,
            gap=found.gap,
            cosine=found.cosine,
            largest_difference=found.largest_difference,
            layer=finding.layer,
            odd=finding.odd,
            runs=finding.ran,
            action=action if finding.outcome == "divergent" else "flag",
        )
        await self._records.add(KIND, divergence.id, divergence.encoded(), keep=self._keep)
        return divergence.id

    async def latest(self, limit: int) -> Sequence[Divergence]:
        """Newest first."""
        read = [decoded(value) for _, value in await self._records.latest(KIND, limit)]
        return [each for each in read if each is not None]

    async def get(self, identity: str) -> Divergence | None:
        """The one with this id."""
        value = await self._records.get(KIND, identity)
        return None if value is None else decoded(value)
