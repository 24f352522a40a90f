"""Hits from a Redis, the memory tier off, beside a bare aiohttp handler with one GET."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.fast.figures import Figure, Options, compared, in_turns, options, rate, told
from loadtest.load import Measured, same
from loadtest.stage import Server, stage


def measure(given: Options) -> list[Figure]:
    """One worker each, the same Redis."""
    with stage() as on:
        redis = on.redis()
        if redis is None:
            note = "redis-server is not installed"
            return [Figure(name="hits from Redis against bare aiohttp with a GET", value=None, least=0.7, note=note)]

        def load(server: Server) -> Measured:
            return same(server.url, given.seconds)

        proxy = on.proxy(on.null().url, store__url=redis, store__memory=0)
        turns = in_turns(given.rounds, {"redis": (proxy, load), "bare": (on.bare(redis), load)})
        return [
            Figure(name="hits/s from Redis", value=rate(turns["redis"]), unit="/s"),
            Figure(name="bare aiohttp handler with one GET", value=rate(turns["bare"]), unit="/s"),
            *compared("hits from Redis against bare aiohttp with a GET", turns["redis"], turns["bare"], 0.7),
        ]


def main(argv: Sequence[str]) -> int:
    """The figures of hits from a Redis."""
    return told("hit-redis", measure(options(argv, "hit-redis")))
