"""Hits from a SQLite file, the memory tier off."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.fast.figures import Figure, Options, in_turns, options, rate, told
from loadtest.load import same
from loadtest.stage import stage


def measure(given: Options) -> list[Figure]:
    """One worker."""
    with stage() as on:
        proxy = on.proxy(on.null().url, store__url=f"sqlite:///{on.folder}/hits.db", store__memory=0)
        turns = in_turns(given.rounds, {"sqlite": (proxy, lambda server: same(server.url, given.seconds))})
        return [Figure(name="hits/s from SQLite", value=rate(turns["sqlite"]), unit="/s")]


def main(argv: Sequence[str]) -> int:
    """The figures of hits from a file."""
    return told("hit-sqlite", measure(options(argv, "hit-sqlite")))
