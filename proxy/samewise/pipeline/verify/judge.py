"""Whether the backend still gives an entry's answer: recompute, confirm what differs, find what made it differ."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from samewise.core.compare import Comparison, Verdict, compare
from samewise.core.divergence import Outcome
from samewise.core.entry import Entry
from samewise.core.families.contract import Output
from samewise.core.families.registry import BY_NAME
from samewise.core.layers import Layer, Ran, layer
from samewise.pipeline.verify.recompute import Failed, Recomputer, Run, cached_tokens, instance_of

MOST_PEERS = 8
"""Upstreams that are asked who is right."""
_INCONCLUSIVE = Comparison(verdict=Verdict.INCONCLUSIVE)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a verification. `shown` is the recomputation that `comparison` is about; `runs` are all that there
    were. `odd`: upstreams that most others contradict; `layer`: what made the difference."""

    outcome: Outcome
    why: str = ""
    comparison: Comparison = _INCONCLUSIVE
    shown: Run | None = None
    runs: tuple[Run, ...] = ()
    ran: tuple[Ran, ...] = ()
    layer: Layer = "unknown"
    odd: tuple[str, ...] = ()
    failure: Failed | None = None


class Judge:
    """Makes two calls at most for an entry that diverges, and then some to find out why."""

    def __init__(self, recomputer: Recomputer, *, near_tie_nats: float) -> None:
        self._recomputer = recomputer
        self._nats = near_tie_nats
        self._turn = 0

    async def verify(
        self, entry: Entry, *, warm: bool = False, first: Run | None = None, confirm: bool = True
    ) -> Finding:
        """The finding. `first`: a recomputation that was made already, for a caller that asked for one. `confirm`
        False: no more than one may be made, so that a difference stays open."""
        family = BY_NAME.get(entry.family)
        if family is None:
            return Finding(outcome="inconclusive", why=f"the family {entry.family} is not known")
        recorded = tuple(family.outputs(entry.answer))
        runs: list[Run] = []
        try:
            run = first or await self._recomputer.run(entry, warm=warm, member=self._another(entry))
            runs.append(run)
            found = self._compare(recorded, run.outputs)
            if found.verdict is Verdict.MATCH:
                return Finding(outcome="match", comparison=found, shown=run, runs=tuple(runs))
            if found.verdict is Verdict.INCONCLUSIVE:
                return Finding(outcome="inconclusive", why="another number of choices", runs=tuple(runs))
            if not confirm:
                return Finding(outcome="inconclusive", why="not confirmed: [verify] rate is 0", runs=tuple(runs))
            same = run.member if first is None else self._recomputer.where(run.member)
            again = await self._recomputer.run(entry, warm=warm and first is None, member=same, closely=True)
            runs.append(again)
            if not (await self._recomputer.still(entry, run) and await self._recomputer.still(entry, again)):
                return Finding(outcome="inconclusive", why="the environment changed", runs=tuple(runs))
        except Failed as failure:
            return Finding(outcome="inconclusive", why=f"{failure.kind}: {failure}", runs=tuple(runs), failure=failure)
        return await self._confirm(entry, recorded, found, runs)

    async def _confirm(self, entry: Entry, recorded: tuple[Output, ...], found: Comparison, runs: list[Run]) -> Finding:
        first, again = runs
        confirmed = self._compare(recorded, again.outputs)
        match confirmed.verdict:
            case Verdict.MATCH:
                closer = self._compare(again.outputs, first.outputs)
                tie = Verdict.NEAR_TIE in {found.verdict, closer.verdict}
                best = closer if closer.gap is not None else found
                return self._told(entry, recorded, "near_tie" if tie else "flaky", best, shown=first, runs=runs)
            case Verdict.NEAR_TIE:
                return self._told(entry, recorded, "near_tie", confirmed, shown=again, runs=runs)
            case Verdict.INCONCLUSIVE:
                return Finding(outcome="inconclusive", why="another number of choices", runs=tuple(runs))
            case Verdict.DIVERGENT:
                if found.verdict is Verdict.NEAR_TIE:
                    return self._told(entry, recorded, "near_tie", found, shown=first, runs=runs)
        odd = await self._odd(entry, recorded, runs)
        if not odd and again.warm is False:
            with contextlib.suppress(Failed):
                runs.append(await self._recomputer.run(entry, warm=True, member=again.member))
        told = self._told(entry, recorded, "divergent", confirmed, shown=again, runs=runs)
        return msgspec.structs.replace(told, odd=odd)

    def _another(self, entry: Entry) -> str | None:
        """An upstream other than the one that gave the entry, in turn: one that errs agrees with itself."""
        peers = self._recomputer.peers(entry)
        others = [peer.url for peer in peers if entry.instance not in {peer.url, instance_of(peer)}]
        if len(peers) < 2 or not others:
            return None
        self._turn += 1
        return others[self._turn % len(others)]

    async def _odd(self, entry: Entry, recorded: tuple[Output, ...], runs: list[Run]) -> tuple[str, ...]:
        """Ask the other upstreams of the environment too; those that a majority contradicts.

        The entry speaks for the one that gave it, where that can't be asked any more. One that was drained since it
        answered has answered all the same.
        """
        peers = self._recomputer.peers(entry)[:MOST_PEERS]
        asked = {run.member for run in runs}
        for peer in peers:
            if peer.url not in asked:
                with contextlib.suppress(Failed):
                    runs.append(await self._recomputer.run(entry, member=peer.url))
        said = {run.member: run.outputs for run in runs}
        said.setdefault(self._recomputer.where(entry.instance) or entry.instance or "", recorded)
        return odd_ones(said, self._nats)

    def _compare(self, one: Sequence[Output], other: Sequence[Output]) -> Comparison:
        return compare(one, other, self._nats)

    def _told(
        self,
        entry: Entry,
        recorded: tuple[Output, ...],
        outcome: Outcome,
        found: Comparison,
        *,
        shown: Run,
        runs: Sequence[Run],
    ) -> Finding:
        family = BY_NAME[entry.family]
        cached = cached_tokens(family, entry.answer)
        own = Ran(
            agrees=True,
            warm=None if cached is None else cached > 0,
            concurrency=entry.concurrency,
            instance=entry.instance,
        )
        ran = (
            own,
            *(
                Ran(
                    agrees=self._compare(recorded, run.outputs).verdict is Verdict.MATCH,
                    warm=run.warm,
                    concurrency=run.concurrency,
                    instance=run.instance or run.member,
                )
                for run in runs
            ),
        )
        return Finding(outcome=outcome, comparison=found, shown=shown, runs=tuple(runs), ran=ran, layer=layer(ran))


def odd_ones(said: dict[str, tuple[Output, ...]], near_tie_nats: float) -> tuple[str, ...]:
    """Those that differ from what more than half of them say; none where there are fewer than three, or no majority."""
    groups: list[list[str]] = []
    for name, outputs in said.items():
        for group in groups:
            if compare(said[group[0]], outputs, near_tie_nats).verdict in {Verdict.MATCH, Verdict.NEAR_TIE}:
                group.append(name)
                break
        else:
            groups.append([name])
    largest = max(groups, key=len, default=[])
    if len(said) < 3 or len(largest) * 2 <= len(said):
        return ()
    return tuple(name for group in groups if group is not largest for name in group)
