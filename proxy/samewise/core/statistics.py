"""What counts say about a share, and how sure that is."""

from __future__ import annotations

import math

import msgspec

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution: two-sided 95 %."""


class Interval(msgspec.Struct, frozen=True):
    """A share between 0 and 1, and between what it lies with that confidence."""

    low: float
    high: float


def wilson(successes: int, trials: int, z: float = Z95) -> Interval:
    """Wilson's score interval for a share (Wilson 1927); from 0 to 1 where nothing was tried.

    Unlike the plain normal interval it holds for few trials and for shares of 0 and 1.
    """
    if trials <= 0:
        return Interval(0.0, 1.0)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    low, high = max(0.0, centre - reach), min(1.0, centre + reach)
    return Interval(0.0 if successes <= 0 else low, 1.0 if successes >= trials else high)
