"""What becomes of a request once it is known what the store has."""

from __future__ import annotations

import pytest

from samewise.core.controls import Controls
from samewise.core.decide import Fetch, Serve, after_lookup
from samewise.core.reason import Reason
from tests.support.entries import make_entry


@pytest.mark.parametrize(
    ("age", "max_age", "served"),
    [(0.0, None, True), (5.0, 5.0, True), (5.5, 5.0, False), (4.5, 5.0, True), (0.0, 0.0, False)],
)
def test_max_age_is_the_greatest_age_that_is_served_and_0_serves_nothing(
    age: float, max_age: float | None, served: bool
) -> None:
    entry = make_entry(created=1000.0, ttl=60.0)
    found = after_lookup(entry, now=1000.0 + age, controls=Controls(max_age=max_age), mode="on")
    assert found == (Serve(entry, age) if served else Fetch(Reason.TOO_OLD))
