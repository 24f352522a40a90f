"""Which layer made two runs of one request differ, as far as the runs that there were can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

Layer = Literal["prefix cache", "batching", "instance", "unknown"]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How one run went. `agrees`: it says what the entry says. `warm`: it may have reused prefix KV, None where that
    isn't known. `concurrency`: requests that ran on the same instance when it began, itself included."""

    agrees: bool
    warm: bool | None = None
    concurrency: int = 1
    instance: str | None = None


_FACTORS: tuple[tuple[Layer, Callable[[Ran], object]], ...] = (
    ("instance", lambda ran: ran.instance),
    ("prefix cache", lambda ran: ran.warm),
    ("batching", lambda ran: ran.concurrency > 1),
)


def layer(runs: Sequence[Ran]) -> Layer:
    """The one factor that separates the runs that agree from those that don't; unknown where none does, or several.

    The entry's own run is among them. A factor that isn't known of every run separates nothing.
    """
    agreeing = [ran for ran in runs if ran.agrees]
    others = [ran for ran in runs if not ran.agrees]
    if not agreeing or not others:
        return "unknown"
    found: list[Layer] = []
    for name, factor in _FACTORS:
        ours, theirs = {factor(ran) for ran in agreeing}, {factor(ran) for ran in others}
        if None not in ours | theirs and ours.isdisjoint(theirs):
            found.append(name)
    return found[0] if len(found) == 1 else "unknown"
