"""Streams relayed: the time to the first token, and tokens a second of 200-chunk streams at 64 clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

from loadtest.fast.figures import Figure, Options, in_turns, options, rate, ratio, told
from loadtest.load import Measured, anew, question
from loadtest.stage import Server, stage

CHUNKS = 200
CLIENTS = 64


def measure(given: Options) -> list[Figure]:
    """Beside the upstream asked directly."""
    seeds = itertools.count(1)

    def one(server: Server) -> Measured:
        return anew(server.url, given.seconds, lambda _: question(next(seeds), stream=True))

    def many(server: Server) -> Measured:
        return anew(server.url, given.seconds, lambda _: question(next(seeds), stream=True), connections=CLIENTS)

    with stage() as on:
        slow, quick = on.null(latency=0.01, gap=0.001, chunks=10), on.null(chunks=CHUNKS, turns=1)
        alone = in_turns(given.rounds, {"proxy": (on.proxy(slow.url), one), "direct": (slow, one)})
        relay = on.relay(quick.url)
        servers = {"proxy": (on.proxy(quick.url), many), "relay": (relay, many), "direct": (quick, many)}
        turns = in_turns(given.rounds, servers)
        hop = ratio(turns["relay"], turns["direct"])
        first = median(
            (a.seen.first - b.seen.first) * 1e3 for a, b in zip(alone["proxy"], alone["direct"], strict=True)
        )
        relayed = ratio(turns["proxy"], turns["direct"])
        return [
            Figure(name="time to first token added on a stream", value=first, unit="ms", most=1),
            Figure(name="tokens/s relayed", value=rate(turns["proxy"]) * CHUNKS, unit="/s"),
            Figure(name="tokens/s relayed against directly", value=relayed, unit="x", least=0.6),
            Figure(name="the same by a bare aiohttp relay", value=hop, unit="x"),
            Figure(
                name="processor time of a relayed chunk",
                value=median(1e6 / turn.capacity / CHUNKS for turn in turns["proxy"]),
                unit="us",
            ),
        ]


def main(argv: Sequence[str]) -> int:
    """The figures of live streams."""
    return told("stream-miss", measure(options(argv, "stream-miss")))
