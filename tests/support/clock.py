"""A clock that only a test moves."""

from __future__ import annotations

from tests.support.entries import NOW


class ManualClock:
    """Starts at `NOW`; `advance` moves both hands."""

    def __init__(self, now: float = NOW) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds
