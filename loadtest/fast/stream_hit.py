"""Streams replayed against streams relayed: 200 chunks, 64 clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from loadtest.fast.figures import Figure, Options, in_turns, options, rate, ratio, told
from loadtest.fast.stream_miss import CHUNKS, CLIENTS
from loadtest.load import Measured, anew, question
from loadtest.stage import Server, stage


def measure(given: Options) -> list[Figure]:
    """The same upstream and the same client for both."""
    seeds = itertools.count(1)

    def live(server: Server) -> Measured:
        return anew(server.url, given.seconds, lambda _: question(next(seeds), stream=True), connections=CLIENTS)

    def again(server: Server) -> Measured:
        return anew(server.url, given.seconds, lambda _: question(stream=True), connections=CLIENTS)

    with stage() as on:
        proxy = on.proxy(on.null(chunks=CHUNKS, turns=1).url)
        turns = in_turns(given.rounds, {"again": (proxy, again), "live": (proxy, live)})
        return [
            Figure(name="streams/s replayed", value=rate(turns["again"]), unit="/s"),
            Figure(name="streams/s relayed", value=rate(turns["live"]), unit="/s"),
            Figure(name="replay against relay", value=ratio(turns["again"], turns["live"]), unit="x", least=5),
        ]


def main(argv: Sequence[str]) -> int:
    """The figures of replays."""
    return told("stream-hit", measure(options(argv, "stream-hit")))
