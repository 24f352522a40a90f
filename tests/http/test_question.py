"""What is read from the bytes of a plain request is what the parser makes of them, or nothing."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.http_writer import HttpVersion11
from hypothesis import example, given
from hypothesis import strategies as st

from samewise.http.question import MATTERS, Question, of_bytes, of_head, question

FRAMING = [
    "Content-Length",
    "Transfer-Encoding",
    "Upgrade",
    "Expect",
    "Connection",
    "Proxy-Connection",
    "TE",
    "Trailer",
]
OTHERS = [
    "Host",
    "traceparent",
    "User-Agent",
    "X-Stainless-Retry-Count",
    "x y",
    "X(",
    "",
    "Sec-WebSocket-Key1",
    "Server",
]
NAMES = st.sampled_from([*sorted(MATTERS), *FRAMING, *OTHERS]).flatmap(
    lambda name: st.sampled_from([name, name.upper(), name.title()])
)
VALUES = st.one_of(
    st.sampled_from(
        ["close", "keep-alive", "chunked", "identity", "100-continue", "websocket", "0", "1", "5", "a, b", ""]
    ),
    st.text("ab \t,;:=", max_size=6),
    st.text(st.characters(max_codepoint=0x100), max_size=6),
)
GAPS = st.sampled_from([": ", ": ", ": ", ":", ":  ", " : ", ":\t"])
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", " \r\n", "\r\n "])
FIELDS = st.lists(st.tuples(NAMES, GAPS, VALUES, ENDS), max_size=6)
LINES = st.sampled_from(
    [
        "POST /v1/chat/completions HTTP/1.1",
        "POST /v1/completions?a=b#c HTTP/1.1",
        "GET /v1/models HTTP/1.1",
        "POST http://h/v1 HTTP/1.1",
        "POST /v1/\x7f HTTP/1.1",
        "POST  /v1 HTTP/1.1",
        "POST /v1 HTTP/1.0",
        "post /v1 HTTP/1.1",
    ]
)


def parsed(data: bytes) -> Question | None:
    """What aiohttp's parser makes of the bytes, where they are one whole POST and the connection lives on after it."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(
            Mock(), loop, 2**16, max_line_size=65536, max_field_size=65536, auto_decompress=False
        )
        try:
            messages, upgraded, rest = parser.feed_data(data)
        except HttpProcessingError:
            return None
        if len(messages) != 1 or upgraded or rest:
            return None
        [(message, payload)] = messages
        if message.method != "POST" or message.version != HttpVersion11 or message.should_close or not payload.is_eof():
            return None
        body = b"".join(payload._buffer) if hasattr(payload, "_buffer") else b""
        return question(message.path, message.headers.items(), body)
    finally:
        loop.close()


def plain(fields: list[tuple[str, str]], body: bytes = b"body") -> bytes:
    head = "".join(
        f"{name}: {value}\r\n" for name, value in [("Host", "h"), *fields, ("Content-Length", str(len(body)))]
    )
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body


@given(
    LINES,
    st.sampled_from(["Host: h\r\n", "Host: h:80\r\n", "Host: a b\r\n", "Host: [::1]:1\r\n", "Host: ,\r\n", ""]),
    FIELDS,
    st.integers(-1, 1),
    st.binary(max_size=8),
)
@example("POST /v1 HTTP/1.1", "", [], 0, b"x")
@example("POST /v1 HTTP/1.1", "Host: a b\r\n", [], 0, b"x")
@example("POST /v1 HTTP/1.1", "Host: ,\r\n", [], 0, b"x")
@example("POST /v1 HTTP/1.1", "", [("Host", ": ", "a", "\r\n"), ("Host", ": ", "b", "\r\n")], 0, b"x")
@example("POST /v1 HTTP/1.1", "Host: h\r\n", [("Proxy-Connection", ": ", "close", "\r\n")], 0, b"x")
@example(
    "POST /v1 HTTP/1.1",
    "Host: h\r\n",
    [("Upgrade", ": ", "websocket", "\r\n"), ("Connection", ": ", "upgrade", "\r\n")],
    0,
    b"x",
)
def test_bytes_and_parser_say_the_same(
    line: str, host: str, fields: list[tuple[str, str, str, str]], off: int, body: bytes
) -> None:
    head = "".join(f"{name}{gap}{value}{end}" for name, gap, value, end in fields)
    data = f"{line}\r\n{host}{head}Content-Length: {len(body) + off}\r\n\r\n".encode() + body
    asked = of_bytes(data)
    spoken = asked is None or not {("connection", value) for value in ("close", "upgrade")}.isdisjoint(asked)
    assert spoken or asked == parsed(data)


@given(
    st.lists(
        st.tuples(st.from_regex(r"x-[a-z]{1,9}", fullmatch=True), st.from_regex(r"[!-~]{1,9}", fullmatch=True)),
        max_size=9,
        unique_by=lambda field: field[0],
    ),
    st.binary(max_size=40),
)
def test_plain_requests_are_read_and_only_what_matters_tells_them_apart(
    fields: list[tuple[str, str]], body: bytes
) -> None:
    mattering = [("Authorization", "Bearer a"), ("content-type", "application/json")]
    asked = of_bytes(plain([*mattering, *fields], body))
    assert asked == parsed(plain([*mattering, *fields], body)) == of_bytes(plain(mattering, body))
    assert asked != of_bytes(plain([mattering[1], *fields], body))
    assert asked != of_bytes(plain([*mattering, *fields], body + b"x"))


@pytest.mark.parametrize("pieces", range(1, 4))
def test_a_head_tells_what_it_asks_before_its_body_comes(pieces: int) -> None:
    data = plain([("Authorization", "Bearer a"), ("traceparent", str(pieces))])
    end = data.find(b"\r\n\r\n") + 4
    asked = of_head(data[:end])
    assert asked is not None and (*asked, b"body") == of_bytes(data)
    assert of_head(data[: end - pieces]) is None and of_head(data[: end + pieces]) is None
    assert of_bytes(data[:end]) is None and of_bytes(data[:-pieces]) is None


def test_more_fields_than_are_taken_are_the_parsers_to_refuse() -> None:
    assert of_bytes(plain([(f"x-{number}", "1") for number in range(90)])) is not None
    assert of_bytes(plain([(f"x-{number}", "1") for number in range(300)])) is None
