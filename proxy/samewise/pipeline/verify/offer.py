"""What waits to be recomputed: bounded, each key once, the most urgent kind first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from samewise.core import choose
from samewise.core.entry import Entry
from samewise.ports import Trace

Why = Literal["asked", "refresh", "admit", "held", "hit"]
"""An operator asked; a caller asked past the cache; the answer is not kept before; it is withheld; it was served."""
REMEMBERED = 100_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`fresh`: what a caller got who asked past the cache."""

    why: Why
    entry: Entry
    trace: Trace | None = None
    fresh: Entry | None = None


class Waiting:
    """In the order in which they came. `limit`: at most so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> bool:
        """False where there is no room for it. One that waits for the same key is replaced, unless it is as good."""
        known = self._jobs.get(job.entry.key)
        if known is not None:
            if job.why != "hit" and known.why in {"hit", job.why}:
                self._jobs[job.entry.key] = job
            return True
        if len(self._jobs) >= self._limit:
            return False
        self._jobs[job.entry.key] = job
        return True

    def environments(self) -> list[str]:
        """Those of what waits, the first first."""
        return list(dict.fromkeys(job.entry.environment for job in self._jobs.values()))

    def take(self, environment: str) -> Job | None:
        """The first one of this environment."""
        for key, job in self._jobs.items():
            if job.entry.environment == environment:
                del self._jobs[key]
                return job
        return None

    def back(self, job: Job) -> None:
        """It could not be done now: it is the first again, unless something newer of its key has come."""
        if job.entry.key not in self._jobs:
            self._jobs[job.entry.key] = job
            self._jobs.move_to_end(job.entry.key, last=False)


class Chooser:
    """Which hits are recomputed. Each key once in a window, however often it is hit in it."""

    def __init__(self, *, rate: float, each: float) -> None:
        self._rate = rate
        self._each = each
        self._last: OrderedDict[str, int] = OrderedDict()

    def wants(self, key: str, now: float) -> bool:
        """True for a hit that is to be recomputed; it is taken as done."""
        if not choose.is_chosen(key, now, rate=self._rate, each=self._each):
            return False
        if self._rate >= 1:
            return True
        window = choose.window(key, now, self._each)
        if self._each > 0 and self._last.get(key) == window:
            return False
        self._last[key] = window
        self._last.move_to_end(key)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True
