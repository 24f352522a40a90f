"""One rule for an upstream's base URL: what it lets through, everything behind it can use."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.core.address import base_url
from samewise.upstream.address import locate

WRONG = [
    "", "localhost:8000", "ftp://h/v1", "http:///v1", "http://h/v1?x=1", "http://h/v1?", "http://h/v1#f",
    "http://h:99999/v1", "http://h:0/v1", "http://h:x/v1", "http://h:-1/v1", "http://u:secret@h/v1", "http://u@h/v1",
    "http://:secret@h/v1", "http://@h/v1", "http://a b/v1", "http://h/v 1", "http://[::1/v1", "http://[nothing]/v1",
    "http://h\n/v1", "http://h\\@other/v1", "http://h%00/v1", "http://..", "http://.h/v1", f"http://{'a' * 300}/v1",
    "http://\ud800/v1", "//h/v1",
]  # fmt: skip
PARTS = ("http", "https", "HTTP", "://", ":", "/", "//", "@", "?", "#", "[", "]", "::1", "h", "a.b", "é", "\\", "%41")


@pytest.mark.parametrize("url", WRONG)
def test_what_is_no_base_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="should be a base URL") as refused:
        base_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        (" http://h:8000/v1/ ", "http://h:8000/v1"),
        ("https://[::1]:8000/v1", "https://[::1]:8000/v1"),
        ("http://127.0.0.1", "http://127.0.0.1"),
        ("http://model_server.example./a/v1", "http://model_server.example./a/v1"),
        ("http://bücher.example/v1", "http://bücher.example/v1"),
    ],
)
def test_a_base_url_has_one_spelling(url: str, spelt: str) -> None:
    assert base_url(url) == base_url(spelt) == spelt


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=6) | st.integers(-9, 70_000).map(str), max_size=8))
@example(["http://", "h", ":", "65535", "/v1"])
def test_what_passes_can_be_asked_and_names_nobody(parts: list[str]) -> None:
    try:
        url = base_url("".join(parts))
    except ValueError:
        return
    assert base_url(url) == url
    where = locate(url, "/v1/models")
    assert where.host and where.scheme in {"http", "https"} and where.user is None and where.password is None
    assert where.port is not None and not where.query_string and not where.fragment
