"""What users feel of recomputations that the upstream refuses, leaves hanging or cuts: p99 beside no verification."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from loadtest.fast.figures import Figure, Options, in_turns, options, told
from loadtest.load import Measured, anew, question
from loadtest.stage import Server, stage

KNOWN, NEW = 500, 0.1
"""Questions that were asked before, and the share of those that were not."""
FAULTS = {"refuse": "429", "hang": "silence", "cut": "half answers"}


def measure(given: Options) -> list[Figure]:
    """Nine hits to a miss on two connections, verified at rate 1 or not at all; the upstream answers users well."""
    chance, fresh = random.Random(1), itertools.count(10**6)

    def body(_: int) -> dict[str, Any]:
        return question(next(fresh) if chance.random() < NEW else chance.randrange(KNOWN))

    def load(server: Server) -> Measured:
        return anew(server.url, given.seconds, body, connections=2)

    with stage() as on:
        proxies = {"": on.proxy(on.null().url)}
        for fault in FAULTS:
            proxies[fault] = on.proxy(
                on.null(again=fault).url, verify__rate=1.0, verify__warm=0.0, timeouts__first_byte="2s"
            )
        for proxy in proxies.values():
            anew(proxy.url, 60, question, count=KNOWN)
        turns = in_turns(given.rounds, {name: (proxy, load) for name, proxy in proxies.items()})
        figures = []
        for fault, met in FAULTS.items():
            pairs = zip(turns[fault], turns[""], strict=True)
            ratio = median(one.seen.p99 / other.seen.p99 for one, other in pairs)
            figures += [
                Figure(name=f"p99 of users while recomputations meet {met}", value=ratio, unit="x", most=1.05),
                Figure(name=f"recomputations that met {met}", value=_verdicts(proxies[fault], "inconclusive"), least=1),
                Figure(name=f"divergences found in {met}", value=_verdicts(proxies[fault], "divergent"), most=0),
            ]
        return figures


def _verdicts(proxy: Server, verdict: str) -> float:
    return proxy.metric("samewise_verifications_total", verdict=verdict)


def main(argv: Sequence[str]) -> int:
    """The figures of a verifier that gets no answers."""
    return told("verifier", measure(options(argv, "verifier")))
