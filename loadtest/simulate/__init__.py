"""200 backends and 50 proxies without a server: prefix reuse, imbalance, and how fast an invalidation spreads.

`python -m loadtest simulate [--requests N] [--backends N] [--proxies N] [--seed N] [--json FILE] [--page FILE]
[--plot FILE]`
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest import page
from loadtest.simulate import epochs
from loadtest.simulate.cluster import STRATEGIES, Fleet, figures, simulate
from loadtest.simulate.report import plot, table
from loadtest.simulate.trace import Shape, conversations

COMMAND = "python -m loadtest simulate"
CHANGES = 200


def told(shape: Shape, fleet: Fleet, seed: int, changes: int = CHANGES) -> dict[str, Any]:
    """All figures; the same ones for the same arguments."""
    asked = list(conversations(shape, seed))
    return {
        "seed": seed,
        "shape": asdict(shape),
        "fleet": asdict(fleet),
        "conversations": len(asked),
        "strategies": [figures(simulate(asked, name, fleet, seed)) for name in STRATEGIES],
        "epochs": epochs.figures(fleet.proxies, changes, seed, shape.rate),
    }


def main(argv: Sequence[str]) -> int:
    """Run it, print the tables; exit code 1 where `prefix` reuses less than what knows nothing of prefixes."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--requests", type=int, default=Shape().requests)
    parser.add_argument("--rate", type=float, help="requests a second; in proportion to the backends where left out")
    parser.add_argument("--backends", type=int, default=Fleet().backends)
    parser.add_argument("--proxies", type=int, default=Fleet().proxies)
    parser.add_argument("--seed", type=int, default=0)
    page.options(parser)
    parser.add_argument("--plot", type=Path, help="write an SVG there")
    given = parser.parse_args(argv)
    rate = given.rate or Shape().rate * given.backends / Fleet().backends
    fleet = Fleet(backends=given.backends, proxies=given.proxies)
    found = told(Shape(requests=given.requests, rate=rate), fleet, given.seed)
    page.publish(given, COMMAND, found, table(found))
    if given.plot is not None:
        title = f"{fleet.backends} backends, {fleet.proxies} proxies, {given.requests:,} requests, simulated"
        given.plot.write_text(plot(found, title), encoding="utf-8")
    reused = {each["strategy"]: each["reused"] for each in found["strategies"]}
    return int(reused["prefix"] <= max(reused["round-robin"], reused["least-loaded"]))
