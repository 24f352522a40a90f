"""BLEU (Papineni et al. 2002) of one sequence of tokens against one reference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

ORDER = 4


def bleu(output: Sequence[Hashable], reference: Sequence[Hashable], order: int = ORDER) -> float:
    """From 0 to 1: geometric mean of the clipped precisions of 1- to 4-grams, times the brevity penalty.

    An order without a match counts 1/2, 1/4, ... of a match for the first, second, ... such order (Chen and Cherry
    2014, method 3), so that short sequences have a score. Orders longer than either sequence are left out.
    """
    if not output or not reference:
        return 1.0 if not output and not reference else 0.0
    if Counter(output).keys().isdisjoint(reference):
        return 0.0
    logs: list[float] = []
    misses = 0
    for size in range(1, min(order, len(output), len(reference)) + 1):
        ours, theirs = _grams(output, size), _grams(reference, size)
        matches: float = sum(min(count, theirs[gram]) for gram, count in ours.items())
        if matches == 0:
            misses += 1
            matches = 2.0**-misses
        logs.append(math.log(matches / ours.total()))
    brevity = min(0.0, 1.0 - len(reference) / len(output))
    return math.exp(brevity + sum(logs) / len(logs))


def _grams(tokens: Sequence[Hashable], size: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))
