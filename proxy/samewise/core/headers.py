"""Which header fields travel, and which are worth recording."""

from __future__ import annotations

from collections.abc import Iterable

from samewise.core.answer import Headers

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 section 7.6.1: these belong to one connection."""

_FRAMING = frozenset({"content-length", "content-encoding", "host", "expect", "date"})
_OURS = ("x-samewise-",)
_REPLACED = frozenset({"x-request-id", "cache-status", "age"})
_ONE_CALLER = frozenset(
    {"set-cookie", "set-cookie2", "www-authenticate", "authorization-info", "authentication-info", "retry-after"}
)
_REQUEST_ONLY = frozenset({"cache-control", "pragma", "accept-encoding", "traceparent", "tracestate"})


def _end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    fields = [(name.lower(), value) for name, value in headers]
    listed = {token.strip().lower() for name, value in fields if name == "connection" for token in value.split(",")}
    dropped = HOP_BY_HOP | _FRAMING | listed
    return [(name, value) for name, value in fields if name not in dropped and not name.startswith(_OURS)]


def of_request(headers: Iterable[tuple[str, str]]) -> Headers:
    """The client's fields that travel to the upstream, names in lower case."""
    return tuple((name, value) for name, value in _end_to_end(headers) if name not in _REQUEST_ONLY)


def of_response(headers: Iterable[tuple[str, str]]) -> Headers:
    """The upstream's fields that its first caller gets, names in lower case."""
    return tuple((name, value) for name, value in _end_to_end(headers) if name not in _REPLACED)


def size(headers: Headers) -> Headers:
    """How long the body is, where that is told of a body that is in no coding: the answer to HEAD."""
    if any(name == "content-encoding" for name, _ in headers):
        return ()
    return tuple(field for field in headers if field[0] == "content-length")


def replayable(headers: Headers) -> Headers:
    """The fields of a response that any later caller may get too: nothing that names or admits one caller."""
    return tuple(
        (name, value) for name, value in headers if name not in _ONE_CALLER and not name.startswith("x-ratelimit-")
    )


def content_type(headers: Headers) -> str | None:
    """The value as it was sent, parameters included."""
    return next((value for name, value in headers if name == "content-type"), None)
