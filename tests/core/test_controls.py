from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.controls import MAX_DELTA, Controls, parse_controls
from samewise.core.errors import ProxyError


def _cc(value: str) -> Controls:
    return parse_controls({"cache-control": value})


def _refused(headers: dict[str, str], cache: Any = None) -> ProxyError:
    with pytest.raises(ProxyError) as caught:
        parse_controls(headers, cache)
    assert caught.value.status == 400
    return caught.value


def test_nothing_said_is_nothing_asked() -> None:
    assert parse_controls({}) == Controls()
    assert _cc("") == _cc("foo, bar=1, private") == Controls()


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("no-cache", Controls(no_cache=True)),
        ("NO-STORE", Controls(no_store=True)),
        ("Only-If-Cached", Controls(only_if_cached=True)),
        ("no-cache,no-store", Controls(no_cache=True, no_store=True)),
        (" , no-cache ;x, ,no-store", Controls(no_cache=True, no_store=True)),
        ("max-age=10", Controls(max_age=10)),
        ('max-age="10", no-store', Controls(max_age=10, no_store=True)),
        ("max-age = 10", Controls(max_age=10)),
        ("max-age=0", Controls(max_age=0)),
        ("max-age=60, max-age=5", Controls(max_age=5)),
        ('foo="no-store, max-age=3", no-cache', Controls(no_cache=True)),
        (r'foo="a\", no-store", max-age=4', Controls(max_age=4)),
        ("no-cache-please", Controls()),
    ],
)
def test_cache_control_is_read_as_rfc_9111_has_it(value: str, asked: Controls) -> None:
    assert _cc(value) == asked


@pytest.mark.parametrize("value", ["-1", "abc", "", "1.5", "+5", "٣", "1e3"])
def test_a_max_age_that_is_no_number_lets_nothing_recorded_pass(value: str) -> None:
    assert _cc(f"max-age={value}").max_age == 0


@pytest.mark.parametrize("value", ["99999999999", "9" * 400, str(2**63)])
def test_a_huge_max_age_is_the_greatest(value: str) -> None:
    assert _cc(f"max-age={value}").max_age == MAX_DELTA


@given(st.text(max_size=60))
def test_no_cache_control_is_ever_an_error(value: str) -> None:
    assert isinstance(_cc(value), Controls)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0), ("0.4", 0.4), ("1.5", 1.5), (" 60 ", 60), (str(10**12), 1e12), (str(2**63), 2.0**63)],
)
def test_ttl_is_a_number_of_seconds(value: str, seconds: float) -> None:
    assert parse_controls({"x-samewise-ttl": value}).ttl == seconds


@pytest.mark.parametrize(
    "value", ["-1", "abc", "", '"60"', "1h", "1e3", "nan", "inf", "1,2", "60, 60", "9" * 30, "0x10"]
)
def test_a_ttl_that_is_none_is_refused_by_name(value: str) -> None:
    error = _refused({"x-samewise-ttl": value})
    assert error.param == "x-samewise-ttl"
    assert "x-samewise-ttl" in error.message
    assert "seconds" in error.message


@pytest.mark.parametrize(("value", "sample"), [("0", 0), ("3", 3), (" 12 ", 12), ("9" * 18, 10**18 - 1)])
def test_sample_is_a_whole_number(value: str, sample: int) -> None:
    assert parse_controls({"x-samewise-sample": value}).sample == sample


@pytest.mark.parametrize("value", ["-1", "1.0", "", "x", "1,2", "9" * 19, "²"])
def test_a_sample_that_is_none_is_refused_by_name(value: str) -> None:
    assert _refused({"x-samewise-sample": value}).param == "x-samewise-sample"


def test_tags_are_trimmed_and_told_once() -> None:
    assert parse_controls({"x-samewise-tags": " a, b ,a,, c:d/e "}).tags == ("a", "b", "c:d/e")


@pytest.mark.parametrize("value", ["a b", "é", "a\tb", "x" * 129, ",".join(map(str, range(33)))])
def test_tags_are_bounded(value: str) -> None:
    assert _refused({"x-samewise-tags": value}).param == "x-samewise-tags"


@pytest.mark.parametrize(
    ("cache", "asked"),
    [
        (None, Controls()),
        ({}, Controls()),
        ({"no-cache": True}, Controls(no_cache=True)),
        ({"no_store": "TRUE", "no-cache": "false"}, Controls(no_store=True)),
        ({"ttl": 60, "s-maxage": "5"}, Controls(ttl=60, max_age=5)),
        ({"s_max_age": 5, "use-cache": True, "ttl": None}, Controls()),
        ({"namespace": "team"}, Controls(namespace="team")),
    ],
)
def test_the_body_may_ask_in_litellms_words(cache: Any, asked: Controls) -> None:
    assert parse_controls({}, cache) == asked


@pytest.mark.parametrize(
    ("cache", "param"),
    [
        (True, "cache"),
        ([], "cache"),
        ({"no-cache": 1}, "cache.no-cache"),
        ({"no-store": "yes"}, "cache.no-store"),
        ({"ttl": True}, "cache.ttl"),
        ({"ttl": -1}, "cache.ttl"),
        ({"s-maxage": "x"}, "cache.s-maxage"),
        ({"s-maxage": 10**400}, "cache.s-maxage"),
        ({"namespace": 1}, "cache.namespace"),
        ({"namespace": "x" * 257}, "cache.namespace"),
    ],
)
def test_what_the_body_asks_wrongly_is_refused_by_name(cache: Any, param: str) -> None:
    assert _refused({}, cache).param == param


def test_the_stricter_of_header_and_body_counts() -> None:
    headers = {"cache-control": "max-age=10, no-store", "x-samewise-ttl": "5"}
    asked = parse_controls(headers, {"s-maxage": 3, "ttl": 50, "no-store": False, "no-cache": True})
    assert asked == Controls(max_age=3, ttl=5, no_store=True, no_cache=True)
