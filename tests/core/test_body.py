from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.body import MAX_DEPTH, parse, write
from samewise.core.errors import ProxyError

_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)
_OBJECT = st.dictionaries(_TEXT, _JSON, max_size=5)


def _refused(raw: bytes) -> ProxyError:
    with pytest.raises(ProxyError) as caught:
        parse(raw)
    assert caught.value.status == 400
    assert set(json.loads(caught.value.body())["error"]) == {"message", "type", "param", "code"}
    return caught.value


@given(_OBJECT)
def test_what_is_written_is_read_back(body: dict[str, Any]) -> None:
    again = parse(write(body))
    assert again == body
    assert json.dumps(again) == json.dumps(body)


@given(_OBJECT)
def test_members_keep_their_order(body: dict[str, Any]) -> None:
    assert list(parse(json.dumps(body, indent=2).encode())) == list(body)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64 + 1, 10**80, -(2**70)])
def test_whole_numbers_are_exact(number: int) -> None:
    body = parse(b'{"seed":%d}' % number)
    assert body == {"seed": number}
    assert write(body) == b'{"seed":%d}' % number


def test_lone_surrogates_stay_themselves() -> None:
    body = parse(rb'{"a":"\ud800","b":"\udc00"}')
    assert body == {"a": "\ud800", "b": "\udc00"}
    assert parse(write(body)) == body


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"temperature":0,"model":"m","temperature":1}', "temperature"),
        (b'{"messages":[{"role":"a","role":"a"}]}', "role"),
        (b'{"a":{"b":{"c":1,"\\u0063":2}}}', "c"),
        (rb'{"\ud800":1,"\ud800":2}', "?"),
    ],
)
def test_a_member_that_comes_twice_is_refused_by_name(raw: bytes, name: str) -> None:
    error = _refused(raw)
    assert error.param == name
    assert error.code == "duplicate_member"
    assert name in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nul",
        b"[]",
        b'"x"',
        b"1",
        b'{"a":1}x',
        b'{"a":01}',
        b'{"a":"\n"}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":[-1e999]}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":' + b"9" * (sys.get_int_max_str_digits() + 1) + b"}",
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    _refused(raw)


def test_the_place_of_broken_json_is_told() -> None:
    assert "line 2, column 6" in _refused(b'{"a":1,\n "b" 2}').message


def test_a_byte_order_mark_is_named() -> None:
    assert "byte order mark" in _refused(b"\xef\xbb\xbf{}").message


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_too_deep_is_refused_and_not_a_crash(depth: int, opening: bytes, closing: bytes) -> None:
    assert "levels" in _refused(b'{"a":' + opening * depth + b"1" + closing * depth + b"}").message


def test_the_deepest_that_is_allowed_is_read() -> None:
    inner = MAX_DEPTH - 1
    assert parse(b'{"a":' + b"[" * inner + b"]" * inner + b"}")


def test_brackets_in_texts_are_no_levels() -> None:
    assert parse(json.dumps({"a": "[" * 1000, "b": [[]] * 1000}).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    try:
        assert isinstance(parse(raw), dict)
    except ProxyError as error:
        assert error.status == 400
        error.body()
