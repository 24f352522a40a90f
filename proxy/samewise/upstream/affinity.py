"""Strategies that send a question where its prefix is warm, or its session at home, without drowning anyone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import xxhash

from samewise.ports import Call, Clock
from samewise.upstream.prefixes import DEFAULT_BLOCK, Seen, blocks
from samewise.upstream.strategy import C, Candidate, LeastLoaded, Strategy

SPREAD = 1.25
"""How far above its fair share of running requests an upstream may go (bounded-load hashing)."""
WARM_UP = 30.0
"""Seconds in which a new or returning upstream's share grows to a full one."""
_LEAST = 0.1


class Loads:
    """Which candidates have room: at most `SPREAD` times their share of what runs, with one more running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def with_room(self, candidates: Sequence[C]) -> list[C]:
        """Never empty: the least loaded one always has room."""
        weights = [self._weight(candidate) for candidate in candidates]
        total, whole = sum(candidate.running for candidate in candidates) + 1, sum(weights)
        room = [
            candidate
            for candidate, weight in zip(candidates, weights, strict=True)
            if candidate.running + 1 <= math.ceil(SPREAD * total * weight / whole)
        ]
        return room or [min(candidates, key=lambda candidate: candidate.running)]

    def _weight(self, candidate: Candidate) -> float:
        return min(1.0, max(_LEAST, (self._clock.monotonic() - candidate.since) / WARM_UP))


def by_rendezvous(candidates: Sequence[C], what: bytes) -> list[C]:
    """The candidates in an order that follows from their URLs and `what`: when one goes, only its own move."""
    return sorted(candidates, key=lambda one: xxhash.xxh3_64_intdigest(one.url.encode() + b"\0" + what), reverse=True)


class Prefix:
    """Where the longest part of the prompt is warm; where nobody has more than common property, by rendezvous.

    What many prompts begin with (a system prompt) is soon warm everywhere and attracts nobody; what follows it
    does, so that conversations stay together and are spread evenly.
    """

    def __init__(self, clock: Clock, seen: Seen | None = None) -> None:
        self._loads = Loads(clock)
        self.seen = seen or Seen()

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        """One of `candidates`."""
        if call.route is None:
            return min(candidates, key=lambda candidate: candidate.running)
        chain = blocks(call.route(), candidates[0].block_tokens or DEFAULT_BLOCK)
        room = self._loads.with_room(candidates)
        common = self.seen.common(chain)
        depths = {candidate.url: self.seen.depth(candidate.url, chain) for candidate in room}
        deepest = max(depths.values())
        own = chain[min(common, len(chain) - 1)].to_bytes(8, "big")
        at_home = [candidate for candidate in room if depths[candidate.url] == deepest] if deepest > common else room
        chosen = by_rendezvous(at_home, own)[0]
        self.seen.note(chosen.url, chain)
        return chosen


class Session:
    """By a header of the client's; requests without it go by another strategy."""

    def __init__(self, header: str, clock: Clock, otherwise: Strategy) -> None:
        self._header = header.lower()
        self._loads = Loads(clock)
        self._otherwise = otherwise

    @property
    def seen(self) -> Seen | None:
        """What requests without the header go by."""
        return self._otherwise.seen

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        """One of `candidates`."""
        session = next((value for name, value in call.headers if name == self._header), None)
        if session is None:
            return self._otherwise.choose(candidates, call)
        return by_rendezvous(self._loads.with_room(candidates), session.encode("utf-8", "surrogateescape"))[0]


class RoundRobin:
    """Each in its turn."""

    seen = None

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        """One of `candidates`."""
        self._turn += 1
        return candidates[self._turn % len(candidates)]


def by_name(name: str, clock: Clock, session_header: str) -> Strategy:
    """`prefix`, `least-loaded`, `round-robin` or `session`. Raises ValueError for another name."""
    made: dict[str, Callable[[], Strategy]] = {
        "prefix": lambda: Prefix(clock),
        "least-loaded": LeastLoaded,
        "round-robin": RoundRobin,
        "session": lambda: Session(session_header, clock, Prefix(clock)),
    }
    if name not in made:
        raise ValueError(f"{name!r} is no strategy; use one of {', '.join(made)}")
    return made[name]()
