"""Shares and their intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.statistics import wilson

counts = st.integers(0, 5000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (196, 200, 0.9497, 0.9922),
    ],
)
def test_known_values(successes: int, trials: int, low: float, high: float) -> None:
    found = wilson(successes, trials)
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


@given(counts)
def test_the_share_lies_in_its_interval_which_is_symmetric_in_success_and_failure(count: tuple[int, int]) -> None:
    successes, trials = count
    found, mirrored = wilson(successes, trials), wilson(trials - successes, trials)
    assert 0.0 <= found.low <= found.high <= 1.0
    if trials:
        assert found.low <= successes / trials <= found.high
    assert math.isclose(found.low, 1 - mirrored.high, abs_tol=1e-9)


@given(counts)
def test_more_of_the_same_makes_it_narrower(count: tuple[int, int]) -> None:
    successes, trials = count
    once, twice = wilson(successes, trials), wilson(2 * successes, 2 * trials)
    assert twice.high - twice.low <= once.high - once.low + 1e-12
