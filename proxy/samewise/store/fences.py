"""What was discarded, so that a fill that began before it never lands after it."""

from __future__ import annotations

from collections import OrderedDict


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
