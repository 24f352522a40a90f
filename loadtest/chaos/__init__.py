"""Everything fails at random while many ask; afterwards every answer is held against the truth.

`python -m loadtest chaos [--seed N] [--seeds N] [--requests N | --seconds N] [--concurrency N] [--json FILE]`

Two proxies share a Redis behind a shim that can break it, in front of two backends that fail. Tenants ask what
others ask too, stream or not, leave early, bypass, refresh and tag; an operator invalidates; backends change what they
are; Redis freezes, dies, lies and comes back empty; proxies are killed. An answer says which call made it, for whom, of
what, in which environment. The seed decides every choice of load and faults; what the machine makes of it is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run the seeds; exit code 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m loadtest chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after another")
    parser.add_argument("--requests", type=int, help="for each seed (10,000 where no time is said)")
    parser.add_argument("--seconds", type=float, help="for each seed, as many requests as there are in that time")
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args(argv)
    from loadtest.chaos.run import run

    requests = given.requests or (10_000 if given.seconds is None else sys.maxsize)
    figures = []
    for seed in range(given.seed, given.seed + given.seeds):
        found = asyncio.run(run(seed, requests=requests, concurrency=given.concurrency, seconds=given.seconds))
        figures.append(found)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    asked = sum(found["requests"] for found in figures)
    wrong = sum(len(found["wrong"]) for found in figures)
    sys.stdout.write(f"{asked} requests, {wrong} wrong\n")
    return int(wrong > 0)
