"""Whether it became slower: ratios of a short run against those of the last full one. Seconds are not compared."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loadtest.fast import coalesce, hit, hit_redis, miss, stream_hit, stream_miss
from loadtest.fast.figures import KEPT, Options, options, table

SLACK = 0.7
"""A ratio may fall to this part of what it was: two short runs on a busy machine differ by as much."""


def main(argv: Sequence[str]) -> int:
    """1 where a ratio fell, or a figure that counts calls grew."""
    given = options(["--seconds", "1", "--rounds", "3", *argv], "check")
    known = {item["name"]: item["value"] for item in json.loads(KEPT.read_text())["figures"]}
    code = 0
    for scenario in (hit, hit_redis, miss, stream_miss, stream_hit, coalesce):
        figures = scenario.measure(Options(seconds=given.seconds, rounds=given.rounds))
        print(table(figures), flush=True)
        for figure in figures:
            before = known.get(figure.name)
            if figure.unit != "x" or figure.value is None or before is None:
                continue
            if figure.value < before * SLACK:
                print(f"SLOWER: {figure.name} is {figure.value:.3g}, and was {before:.3g}")
                code = 1
    return code
