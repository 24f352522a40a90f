from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.cache_status import CacheStatus, render


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (CacheStatus(ttl=3540.7), "samewise; hit; ttl=3540"),
        (CacheStatus(ttl=-0.5), "samewise; hit; ttl=-1"),
        (CacheStatus(fwd="miss", stored=True), "samewise; fwd=miss; stored"),
        (CacheStatus(fwd="miss", collapsed=True), "samewise; fwd=miss; collapsed"),
        (CacheStatus(fwd="request", stored=True), "samewise; fwd=request; stored"),
        (CacheStatus(fwd="bypass", detail="unseeded"), "samewise; fwd=bypass; detail=unseeded"),
        (CacheStatus(fwd="miss", fwd_status=503), "samewise; fwd=miss; fwd-status=503"),
        (CacheStatus(fwd="miss", detail="two words"), 'samewise; fwd=miss; detail="two words"'),
        (CacheStatus(key="0a"), 'samewise; hit; key="0a"'),
        (CacheStatus(stored=True, collapsed=True), "samewise; hit"),
        (CacheStatus(ttl=1e30), "samewise; hit; ttl=999999999999999"),
    ],
)
def test_the_value_is_as_rfc_9211_has_it(status: CacheStatus, value: str) -> None:
    assert render(status) == value


def test_caches_before_us_come_first() -> None:
    assert render(CacheStatus(fwd="miss"), received="Origin; hit") == "Origin; hit, samewise; fwd=miss"


@given(st.text())
def test_a_detail_never_leaves_its_place(detail: str) -> None:
    value = render(CacheStatus(fwd="bypass", detail=detail))
    assert re.fullmatch(r'samewise; fwd=bypass; detail=([!#-+\--:<-~]+|"([ !#-\[\]-~]|\\["\\])*")', value)
