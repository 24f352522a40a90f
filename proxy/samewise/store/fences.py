"""What was discarded, so that a fill that began before it never lands after it."""

from __future__ import annotations

from collections import OrderedDict

from samewise.core.entry import Entry
from samewise.ports import Clock


class Fences:
    """The highest fence of each discarded key, bounded: of those forgotten, the highest holds for every key.

    To forget is safe: it refuses more fills, never fewer. All calls are O(1).
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._fences: OrderedDict[str, int] = OrderedDict()
        self._floor = 0

    def raise_to(self, key: str, fence: int) -> None:
        """Refuse from now on what began before `fence`; a lower one than before changes nothing."""
        self._fences[key] = max(fence, self._fences.pop(key, 0))
        if len(self._fences) > self._capacity:
            self._floor = max(self._floor, self._fences.popitem(last=False)[1])

    def admits(self, key: str, began: int) -> bool:
        """True where no fence of this key is higher than `began`."""
        return began >= self._fences.get(key, self._floor) and began >= self._floor


class Admission:
    """What a store takes: entries that are fresh, no larger than `max_entry` bytes, and behind no fence."""

    def __init__(self, clock: Clock, max_entry: int) -> None:
        self._clock = clock
        self._max_entry = max_entry
        self.fences = Fences()

    def admits(self, entry: Entry) -> bool:
        """True where the entry may be kept."""
        return (
            fits(entry, self._max_entry)
            and entry.fresh(self._clock.now())
            and self.fences.admits(entry.key, entry.began)
        )


def fits(entry: Entry, max_entry: int) -> bool:
    """True where neither the answer's payload nor the request is larger than `max_entry` bytes."""
    return entry.answer.size() <= max_entry and len(entry.request) <= max_entry
