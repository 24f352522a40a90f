"""One, two and four workers; a thousand entries and a million."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from loadtest.fast.figures import Figure, Options, in_turns, options, rate, ratio, told
from loadtest.load import Measured, anew, question, same
from loadtest.stage import SERVER, Server, Stage, stage

FEW = 1000


def measure(given: Options) -> list[Figure]:
    """The generator is niced where it shares the cores of the workers."""

    def load(server: Server) -> Measured:
        return same(server.url, given.seconds, connections=64, nice=10)

    with stage() as on:
        null = on.null()
        servers = {f"{count}": (on.proxy(null.url, workers=count, core=None), load) for count in (1, 2, 4)}
        turns = in_turns(given.rounds, servers)
        figures = [Figure(name=f"hits/s, {count} workers", value=rate(turns[count]), unit="/s") for count in servers]
        two = ratio(turns["2"], turns["1"])
        figures.append(Figure(name="two workers against one", value=two, unit="x", least=1.6))
    return [*figures, *_entries(given)]


def _entries(given: Options) -> list[Figure]:
    with stage() as on:
        null = on.null()

        def load(server: Server) -> Measured:
            return anew(server.url, given.seconds, lambda at: question(at % FEW), connections=16)

        few, _ = _filled(on, null.url, 0)
        many, overhead = _filled(on, null.url, given.entries)
        for server in (few, many):
            anew(server.url, 3600, question, count=4 * FEW, connections=16)
        turns = in_turns(given.rounds, {"few": (few, load), "many": (many, load)})
        name = f"hits/s with {given.entries:,} entries against {FEW:,}"
        capacity = ratio(turns["many"], turns["few"], lambda turn: turn.capacity)
        return [
            Figure(name=name, value=ratio(turns["many"], turns["few"]), unit="x", least=0.85),
            Figure(name=f"{name}, by processor time", value=capacity, unit="x"),
            Figure(name="overhead of an entry in the memory tier", value=overhead, unit="bytes", most=600),
        ]


def _filled(on: Stage, upstream: str, entries: int) -> tuple[Server, float]:
    told_in = on.folder / f"overhead-{entries}"
    command = [sys.executable, "-m", "loadtest.fast.filled", upstream, str(entries), str(told_in)]
    server = on.start(command, SERVER)
    return server, float(told_in.read_text())


def main(argv: Sequence[str]) -> int:
    """The figures of more of both."""
    return told("scale", measure(options(argv, "scale")))
