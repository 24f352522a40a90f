"""Every figure of the documentation, beside the peers that are installed: takes a quarter of an hour."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.fast import (
    coalesce,
    conversation,
    hit,
    hit_redis,
    hit_sqlite,
    miss,
    mixed,
    scale,
    soak,
    stream_hit,
    stream_miss,
)
from loadtest.fast.figures import RESULTS, Figure, options, plot, told

ALL = (hit, hit_redis, hit_sqlite, miss, stream_miss, stream_hit, coalesce, scale, mixed, conversation, soak)


def main(argv: Sequence[str]) -> int:
    """All of them; the plot lies beside the JSON."""
    given = options(argv, "peers")
    figures: list[Figure] = []
    for scenario in ALL:
        print(f"# {(scenario.__doc__ or '').strip()}", flush=True)
        found = scenario.measure(given)
        told("", found, keep=False)
        figures += found
    print("\n# All of it\n")
    code = told("peers", figures)
    title = "Figures in parts of what they should be (dashed); longer is better"
    (RESULTS / "peers.svg").write_text(plot(figures, title))
    return code
