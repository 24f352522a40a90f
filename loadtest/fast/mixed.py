"""Zipf over 10,000 prompts, a fifth of them streams, in a cache that holds a tenth: hits against an ideal LRU's."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

from loadtest.fast.figures import Figure, Options, options, told
from loadtest.load import anew, question
from loadtest.stage import stage

PROMPTS = 10_000
REQUESTS = 30_000
MEMORY = 2 << 20


def measure(given: Options) -> list[Figure]:
    """One client, so that the order is the same for both."""
    chance = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(PROMPTS)]
    asked = chance.choices(range(PROMPTS), weights, k=REQUESTS)
    streams = [chance.random() < 0.2 for _ in asked]
    with stage() as on:
        null = on.null(chunks=10)
        proxy = on.proxy(null.url, store__memory=MEMORY)
        seen = anew(
            proxy.url,
            3600,
            lambda at: question(asked[at], stream=True) if streams[at] else question(asked[at]),
            count=REQUESTS,
        )
        entries = int(proxy.metric("samewise_store_entries", tier="memory"))
    hits = seen.statuses.get("hit", 0)
    return [
        Figure(name="requests/s of one client, Zipf", value=seen.rate, unit="/s"),
        Figure(name="hit rate, Zipf", value=hits / REQUESTS),
        Figure(name="hit rate against an ideal LRU's", value=hits / lru(asked, entries), unit="x", least=0.98),
    ]


def lru(asked: Sequence[int], room: int) -> int:
    """Hits of a cache that keeps the `room` questions that were asked last."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for each in asked:
        hits += each in kept
        kept[each] = None
        kept.move_to_end(each)
        if len(kept) > room:
            kept.popitem(last=False)
    return hits


def main(argv: Sequence[str]) -> int:
    """The figures of a mixed load."""
    return told("mixed", measure(options(argv, "mixed")))
