"""Framing says where a request ends, or says nothing; whatever the pieces are in which it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from samewise.http.framing import MAX_REMEMBERED, Framing

NAMES = st.sampled_from(["Host", "X-A", "Accept", "traceparent", "x-content-length-x", "Connection"])
BODIES = st.binary(max_size=300)


def request(body: bytes, names: list[str], spelling: str = "Content-Length") -> bytes:
    fields = "".join(f"{name}: {'keep-alive' if name == 'Connection' else 'v'}\r\n" for name in names)
    return f"POST /v1/chat/completions HTTP/1.1\r\n{fields}{spelling}: {len(body)}\r\n\r\n".encode() + body


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [piece for start, end in zip([0, *ends], ends, strict=False) if (piece := data[start:end])]


@given(BODIES, st.lists(NAMES, max_size=4), st.lists(st.integers(0, 600), max_size=5))
def test_a_request_in_any_pieces_is_itself_or_unknown(body: bytes, names: list[str], places: list[int]) -> None:
    data = request(body, names)
    pieces = split(data, places)
    framing = Framing()
    for piece in pieces:
        assert framing.whole is None or framing.whole[1] != data
        framing.feed(piece)
    head_in_one = len(pieces[0]) >= data.find(b"\r\n\r\n") + 4
    assert framing.clear is head_in_one
    if head_in_one:
        first = pieces[0] if len(pieces) > 1 else b""
        assert framing.whole == (first, data)
    else:
        assert framing.whole is None


@given(
    st.lists(BODIES, min_size=1, max_size=4), st.sampled_from(["content-length", "CONTENT-LENGTH", "Content-Length"])
)
def test_one_after_the_other_each_is_known(bodies: list[bytes], spelling: str) -> None:
    framing = Framing()
    for body in bodies:
        data = request(body, ["Host"], spelling)
        framing.feed(data)
        assert framing.whole == (b"", data)


@given(BODIES, BODIES, st.integers(1, 200))
def test_more_than_one_request_at_once_ends_it_for_good(one: bytes, other: bytes, extra: int) -> None:
    second = request(other, ["Host"])
    framing = Framing()
    framing.feed(request(one, ["Host"]) + second[:extra])
    assert not framing.clear
    framing.feed(second)
    assert not framing.clear and framing.whole is None


@given(
    BODIES,
    st.sampled_from(
        [
            "Transfer-Encoding: chunked",
            "transfer-encoding : chunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Connection: close",
            "Connection: keep-alive, upgrade",
            "connection:\tX-A",
            "Content-Length: 5",
            "content-length:0",
        ]
    ),
    st.booleans(),
)
def test_what_is_not_plain_is_not_known(body: bytes, field: str, first: bool) -> None:
    names = ["Host"]
    data = request(body, names)
    at = data.find(b"\r\n") + 2 if first else data.find(b"\r\n\r\n") + 2
    framing = Framing()
    framing.feed(data[:at] + field.encode() + b"\r\n" + data[at:])
    assert not framing.clear and framing.whole is None


def test_what_is_too_large_is_followed_and_not_kept() -> None:
    large = request(b"x" * MAX_REMEMBERED, ["Host"])
    framing = Framing()
    for piece in split(large, [500, 9000, 40_000]):
        framing.feed(piece)
    assert framing.clear and framing.whole is None
    small = request(b"{}", ["Host"])
    framing.feed(small)
    assert framing.whole == (b"", small)


def test_an_empty_line_before_a_request_is_no_request() -> None:
    framing = Framing()
    framing.feed(b"\r\n\r\n" + request(b"{}", ["Host"]))
    assert not framing.clear


@given(st.lists(BODIES, min_size=1, max_size=4), st.integers(0, 400), st.sampled_from([b"", b"GARBAGE\r\n\r\n"]))
def test_requests_that_come_together_are_cut_apart(bodies: list[bytes], place: int, after: bytes) -> None:
    """Also where the body of the first began to come before."""
    requests = [request(body, ["Host"]) for body in bodies]
    head = requests[0].find(b"\r\n\r\n") + 4
    before = min(head + place, len(requests[0])) if place else 0
    framing = Framing()
    if before:
        framing.feed(requests[0][:before])
    rest = [piece for piece in (requests[0][before:], *requests[1:], after) if piece]
    assert list(framing.cut(b"".join(rest))) == rest


def test_what_is_not_plain_is_not_cut() -> None:
    data = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + request(b"", ["Host"])
    assert list(Framing().cut(data)) == [data]
