"""Server-sent events: the same events whatever the split, in linear time, within a limit."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.core.answer import Event
from samewise.upstream.sse import EventTooLarge, Parser

CORPUS = sorted((Path(__file__).parent.parent / "fuzz" / "sse").iterdir())


def reference(data: bytes) -> list[Event]:
    """The standard's algorithm, one byte at a time and one rule a line."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines: list[bytes] = []
    line = bytearray()
    at = 0
    while at < len(data):
        if data[at : at + 2] == b"\r\n":
            lines.append(bytes(line))
            line.clear()
            at += 2
        elif data[at : at + 1] in (b"\r", b"\n"):
            lines.append(bytes(line))
            line.clear()
            at += 1
        else:
            line += data[at : at + 1]
            at += 1
    events: list[Event] = []
    buffer: list[bytes] = []
    name = b""
    for whole in lines:
        if whole == b"":
            value = b"\n".join(buffer)
            if value:
                events.append(Event(value, name.decode("utf-8", "replace") or None))
            buffer, name = [], b""
        elif whole[:1] == b":":
            continue
        else:
            colon = whole.find(b":")
            field, value = (whole, b"") if colon < 0 else (whole[:colon], whole[colon + 1 :])
            if value[:1] == b" ":
                value = value[1:]
            if field == b"data":
                buffer.append(value)
            elif field == b"event":
                name = value
    return events


def parse(pieces: list[bytes], limit: int | None = None) -> list[Event]:
    parser = Parser() if limit is None else Parser(limit)
    return [event for piece in pieces for event in parser.feed(piece)]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


token = st.sampled_from(
    [b"data", b"data:", b"data: ", b"event:", b"event: ping", b"id: 1", b"retry: 5", b":", b": ping", b"x", b"{}", b" ",
     b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"\xef\xbb\xbf", "é😀".encode(), b"\xff", b"[DONE]", b"\0"]
)  # fmt: skip
line = st.sampled_from([b"data: 1", b"data:2", b"data", b"event: a", b": c", b"id: 1", b"", b"data: \xc3\xa9"])
ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
streams = st.one_of(
    st.lists(token | st.binary(max_size=4), max_size=40).map(b"".join),
    st.lists(st.tuples(line, ends).map(b"".join), max_size=12).map(b"".join),
)


@given(streams, st.lists(st.integers(0, 200), max_size=12))
@example(b"data: x\r\n\r\ndata: y\r\n\r\n", [8, 9, 10])
@example(b"\xef\xbb\xbfdata: x\n\n", [1, 2])
@example(b"data: a\n\n\n\ndata: b\n\n", [8, 9, 10, 11])
def test_any_split_gives_the_events_of_the_standard(data: bytes, cuts: list[int]) -> None:
    assert parse([data]) == reference(data)
    assert parse(split(data, cuts)) == reference(data)
    assert parse([data[i : i + 1] for i in range(len(data))]) == reference(data)


@given(streams, st.lists(st.integers(0, 200), max_size=12), st.integers(0, 12))
@example(b"data:ab\n\n", [8], 7)
@example(b"\ndata:ab\n\n", [9], 7)
@example(b"data:1\n\n\ndata:ab\n\n", [9, 16], 7)
def test_a_split_never_moves_the_limit(data: bytes, cuts: list[int], limit: int) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[Event], bool]:
        parser, seen = Parser(limit), []
        for piece in pieces:
            try:
                seen += parser.feed(piece)
            except EventTooLarge as error:
                return seen + error.events, True
        return seen, False

    assert outcome([data]) == outcome(split(data, cuts))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_recorded_streams_parse_the_same_at_every_cut(path: Path) -> None:
    data = path.read_bytes()
    whole = reference(data)
    assert whole
    assert parse([data]) == whole
    for cut in range(len(data)):
        assert parse([data[:cut], data[cut:]]) == whole


def test_keep_alives_and_fields_without_data_dispatch_nothing() -> None:
    noise = b": processing\n\nretry: 3000\n\nevent: ping\n\nid: 7\n\ndata\n\ndata:\n\n"
    assert parse([noise + b"data: 1\n\n" + noise]) == [Event(b"1")]


def test_an_events_name_and_lines_are_kept() -> None:
    assert parse([b"event: delta\ndata: {\ndata: }\n\ndata:x\n\n"]) == [Event(b"{\n}", "delta"), Event(b"x")]


@pytest.mark.parametrize(("length", "size"), [(5_000_000, 1 << 10), (5_000_000, 64 << 10), (50_000_000, 64 << 10)])
def test_a_line_of_many_megabytes_is_read_in_linear_time(length: int, size: int) -> None:
    """A parser that looks at the pending bytes again with each piece takes many seconds for the first and the last."""
    data = b"data: " + b"x" * length + b"\n\n"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    start = time.process_time()
    events = parse(pieces)
    assert time.process_time() - start < 2
    assert [len(event.data) for event in events] == [length]


@pytest.mark.parametrize(
    ("tail", "cut"),
    [
        (b"", False),
        (b"\n\n", False),
        (b": ping", False),
        (b": ping\n", False),
        (b"retry: 1\n", False),
        (b"d", True),
        (b"data: {", True),
        (b"data: {}\n", True),
        (b"data: {}\r", True),
        (b"event: x\n", True),
        (b": ping\ndata: 1", True),
    ],
)
def test_it_is_known_whether_a_stream_ends_within_an_event(tail: bytes, cut: bool) -> None:
    parser = Parser()
    parser.feed(b"data: 1\n\n")
    parser.feed(tail)
    assert parser.unterminated() is cut


def test_an_event_over_the_limit_is_refused_with_what_came_before_it() -> None:
    with pytest.raises(EventTooLarge) as caught:
        Parser(20).feed(b"data: 1\n\ndata: " + b"x" * 15 + b"\n\n")
    assert caught.value.events == [Event(b"1")]
    assert parse([b"data: " + b"x" * 14 + b"\n\n"], 20) == [Event(b"x" * 14)]


def test_an_event_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    parser = Parser(1000)
    with pytest.raises(EventTooLarge):
        for _ in range(2000):
            parser.feed(b"x")
