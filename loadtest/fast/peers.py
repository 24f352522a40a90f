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
from loadtest.fast.figures import KEPT, Figure, into_page, options, plot, report, told

ALL = (hit, hit_redis, hit_sqlite, miss, stream_miss, stream_hit, coalesce, scale, mixed, conversation, soak)


def main(argv: Sequence[str]) -> int:
    """All of them; figures and plot go to `docs/`."""
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
    KEPT.with_suffix(".svg").write_text(plot(figures, title))
    KEPT.write_text(report("peers", figures))
    into_page(KEPT.with_suffix(".md"), figures)
    return code
