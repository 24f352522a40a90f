"""Which of several upstreams is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from samewise.ports import Call
from samewise.upstream.prefixes import Seen


class Candidate(Protocol):
    """An upstream that may be asked: healthy, not draining, of the environment and model that the call wants."""

    @property
    def url(self) -> str: ...
    @property
    def running(self) -> int:
        """Requests of ours that run on it now."""

    @property
    def since(self) -> float:
        """When it became good for requests, in monotonic seconds."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of its prefix cache; 0 where it isn't known."""


C = TypeVar("C", bound=Candidate)


class Strategy(Protocol):
    """Chooses; called once for each attempt, and what it returns is asked next."""

    @property
    def seen(self) -> Seen | None:
        """What each upstream has seen lately; None where the choice doesn't go by it."""

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        """One of `candidates`, which is never empty. Waits for nothing."""


class LeastLoaded:
    """The one with the fewest requests running; in turn where several have as few."""

    seen = None

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        """One of `candidates`."""
        fewest = min(candidate.running for candidate in candidates)
        idle = [candidate for candidate in candidates if candidate.running == fewest]
        self._turn += 1
        return idle[self._turn % len(idle)]
