"""Which layer is named as what made two runs differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.layers import Layer, Ran, layer

runs = st.lists(
    st.builds(
        Ran,
        agrees=st.booleans(),
        warm=st.none() | st.booleans(),
        concurrency=st.integers(1, 3),
        instance=st.none() | st.sampled_from("ab"),
    ),
    max_size=6,
)


def ran(agrees: bool, warm: bool | None = False, concurrency: int = 1, instance: str | None = "a") -> Ran:
    return Ran(agrees=agrees, warm=warm, concurrency=concurrency, instance=instance)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([ran(True, warm=True), ran(False)], "prefix cache"),
        ([ran(True, concurrency=8), ran(False), ran(False)], "batching"),
        ([ran(True, concurrency=8), ran(False, concurrency=2)], "unknown"),
        ([ran(True), ran(False, instance="b"), ran(True)], "instance"),
        ([ran(True, concurrency=8), ran(False, instance="b")], "unknown"),
        ([ran(True, concurrency=8), ran(False, instance="b"), ran(True)], "instance"),
        ([ran(True, concurrency=8), ran(False, instance="b"), ran(False)], "batching"),
        ([ran(True, warm=None), ran(False)], "unknown"),
        ([ran(True), ran(True)], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_one_factor_that_separates(found: list[Ran], named: Layer) -> None:
    assert layer(found) == named


@given(runs)
def test_what_is_named_separates_and_the_order_of_runs_is_no_matter(found: list[Ran]) -> None:
    named = layer(found)
    assert layer(found[::-1]) == named
    if named == "unknown":
        return
    factors: dict[str, Callable[[Ran], object]] = {
        "instance": lambda each: each.instance,
        "prefix cache": lambda each: each.warm,
        "batching": lambda each: each.concurrency > 1,
    }
    factor = factors[named]
    assert not {factor(each) for each in found if each.agrees} & {factor(each) for each in found if not each.agrees}
