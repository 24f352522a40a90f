"""Which hits are recomputed: a pure function of key and time, so that popular entries don't take all.

Time is cut into windows of `each` seconds, at other moments for each key. In every window an entry is either chosen
or not, however often it is hit; which keys are chosen moves on from window to window by `rate`, so that an entry
that is hit all the time is chosen once in 1/rate windows, neither never nor always. At rate 1 every hit is chosen.
"""

from __future__ import annotations

import math

_SCALE = float(16**8)


def window(key: str, now: float, each: float) -> int:
    """The number of the window that a moment is in, for this key (64 hex digits)."""
    if each <= 0:
        return 0
    return int((now + each * (int(key[8:16], 16) / _SCALE)) // each)


def is_chosen(key: str, now: float, *, rate: float, each: float) -> bool:
    """True where a hit of this key at this moment (seconds since the epoch) is to be recomputed."""
    if rate >= 1:
        return True
    if rate <= 0:
        return False
    return _turn(int(key[:8], 16) / _SCALE, window(key, now, each), rate)


def is_warm(key: str, turn: int, share: float) -> bool:
    """True where the `turn`-th recomputation of a key may reuse prefix KV; so is that share of them."""
    return _turn(int(key[16:24], 16) / _SCALE, turn, share)


def _turn(start: float, number: int, share: float) -> bool:
    """True for that share of numbers, spread evenly: where a sum that grows by it passes a whole number."""
    return math.floor(start + (number + 1) * share) > math.floor(start + number * share)
