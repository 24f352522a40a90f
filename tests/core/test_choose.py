"""Which hits are recomputed."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from samewise.core.choose import is_chosen, is_warm, window
from samewise.pipeline.verify.offer import Chooser
from tests.support.entries import NOW, key_of

keys = st.text("0123456789abcdef", min_size=64, max_size=64)
rates = st.floats(0.001, 0.999)


@given(keys, rates, st.floats(0, 1e10), st.floats(1, 1e6))
def test_every_key_has_its_turn_and_no_key_has_all_of_them(key: str, rate: float, now: float, each: float) -> None:
    start = window(key, now, each)
    turns = [is_chosen(key, (start + n + 0.5) * each - _offset(key, each), rate=rate, each=each) for n in range(2000)]
    assert abs(sum(turns) - 2000 * rate) <= 2
    longest = math.ceil(1 / rate) + 1
    if longest < 1000:
        assert all(any(turns[at : at + longest]) for at in range(0, 2000 - longest, longest))


def _offset(key: str, each: float) -> float:
    return each * int(key[8:16], 16) / 16**8


@given(keys, st.floats(0, 1e10))
def test_all_and_none(key: str, now: float) -> None:
    assert is_chosen(key, now, rate=1.0, each=60.0)
    assert not is_chosen(key, now, rate=0.0, each=60.0)


def test_about_that_share_of_keys_is_chosen_at_any_moment() -> None:
    chosen = sum(is_chosen(key_of(str(n)), NOW, rate=0.1, each=3600.0) for n in range(5000))
    assert 400 < chosen < 600


def test_a_popular_entry_is_chosen_once_in_a_window_however_often_it_is_hit() -> None:
    chooser = Chooser(rate=0.5, each=60.0)
    keys = [key_of(str(n)) for n in range(200)]
    hits = [[chooser.wants(key, NOW + second / 10) for second in range(100)] for key in keys]
    assert max(sum(each) for each in hits) <= 2
    assert 60 < sum(any(each) for each in hits) < 160


def test_at_rate_1_every_hit_is_chosen() -> None:
    chooser = Chooser(rate=1.0, each=3600.0)
    assert all(chooser.wants(key_of("a"), NOW) for _ in range(10))


@given(keys, st.floats(0.01, 0.99))
def test_that_share_of_recomputations_is_warm(key: str, share: float) -> None:
    warm = sum(is_warm(key, turn, share) for turn in range(1000))
    assert abs(warm - 1000 * share) <= 1
    assert not any(is_warm(key, turn, 0.0) for turn in range(50))
