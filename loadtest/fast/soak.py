"""Growth of memory under a mixed load at full rate, after it has warmed up: `--seconds 600` is the whole of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from loadtest.fast.figures import Figure, Options, options, told
from loadtest.load import anew, question
from loadtest.stage import stage

PARTS = 10


def measure(given: Options) -> list[Figure]:
    """Misses, hits and streams; a full memory tier. The first third warms up."""
    chance, seeds = random.Random(1), itertools.count(10**6)

    def body(_: int) -> dict[str, Any]:
        seed = next(seeds) if chance.random() < 0.3 else chance.randrange(2000)
        return question(seed, stream=True) if chance.random() < 0.2 else question(seed)

    with stage() as on:
        proxy = on.proxy(on.null(chunks=20).url, store__memory=8 << 20)
        seconds = max(given.seconds, 30)
        sizes, errors, rates = [], 0, []
        for _ in range(PARTS):
            seen = anew(proxy.url, seconds / PARTS, body, connections=16)
            sizes.append(proxy.resident())
            errors += seen.errors
            rates.append(seen.rate)
    third = sizes[PARTS // 3 - 1 :]
    growth = 100 * (min(third[-2:]) / third[0] - 1)
    return [
        Figure(name="requests/s, mixed", value=sorted(rates)[PARTS // 2], unit="/s"),
        Figure(name="errors", value=errors, most=1e-9),
        Figure(name="resident memory at the end", value=sizes[-1] / 2**20, unit="MiB"),
        Figure(name=f"growth after warm-up over {seconds:g} s", value=growth, unit="%", most=2),
    ]


def main(argv: Sequence[str]) -> int:
    """The figures of a soak."""
    return told("soak", measure(options(argv, "soak")))
