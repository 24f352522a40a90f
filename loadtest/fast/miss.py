"""What a miss costs beside the upstream asked directly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from loadtest.fast.figures import Figure, Options, in_turns, options, rate, told
from loadtest.load import Measured, anew, question
from loadtest.stage import Server, stage


def measure(given: Options) -> list[Figure]:
    """One client after the other's answer, each question a new one; an upstream that answers at once."""
    seeds = itertools.count(1)

    def load(server: Server) -> Measured:
        return anew(server.url, given.seconds, lambda _: question(next(seeds)))

    with stage() as on:
        null = on.null()
        servers = {"miss": (on.proxy(null.url), load), "relay": (on.relay(null.url), load), "direct": (null, load)}
        turns = in_turns(given.rounds, servers)
        hop = median((a.seen.p50 - b.seen.p50) * 1e3 for a, b in zip(turns["relay"], turns["direct"], strict=True))
        added = median((a.seen.p50 - b.seen.p50) * 1e3 for a, b in zip(turns["miss"], turns["direct"], strict=True))
        return [
            Figure(name="misses/s of one client", value=rate(turns["miss"]), unit="/s"),
            Figure(name="added by a miss, p50", value=added, unit="ms", most=0.5),
            Figure(name="added by a bare aiohttp relay, p50", value=hop, unit="ms"),
            Figure(
                name="processor time of a miss", value=median(1e3 / turn.capacity for turn in turns["miss"]), unit="ms"
            ),
        ]


def main(argv: Sequence[str]) -> int:
    """The figures of misses."""
    return told("miss", measure(options(argv, "miss")))
