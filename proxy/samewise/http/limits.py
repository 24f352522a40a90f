"""How often someone may do something: a bucket that fills again with time."""

from __future__ import annotations

from collections import OrderedDict

from samewise.ports import Clock

MINUTE = 60.0
_REMEMBERED = 10_000


class Rates:
    """Counts by name, within one process. A name has `per_minute` at once, and gets them back evenly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, name: str, per_minute: int) -> float:
        """0 where it may happen now, and then it counts; else the seconds until it may."""
        now = self._clock.monotonic()
        level, since = self._buckets.get(name, (float(per_minute), now))
        level = min(float(per_minute), level + (now - since) * per_minute / MINUTE)
        self._buckets[name] = (level - 1 if level >= 1 else level, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if level >= 1 else (1 - level) * MINUTE / per_minute
