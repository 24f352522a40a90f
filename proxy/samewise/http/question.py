"""What a hit is remembered by: the path, the body, and each header field that can matter, in the order sent.

It is read from what the parser made of a request, or from the bytes of a plain one, and is the same either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

Question = tuple[object, ...]

MATTERS = frozenset(
    {
        "authorization",
        "x-api-key",
        "api-key",
        "content-type",
        "content-encoding",
        "cache-control",
        "x-samewise-ttl",
        "x-samewise-sample",
        "x-samewise-tags",
        "anthropic-beta",
        "anthropic-version",
        "openai-beta",
        "openai-version",
        "expect",
        "connection",
    }
)
"""Header fields on which the answer, its key, or the right to it depends."""

_HEAD = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [!-~](?:[ -~]*[!-~])?\r\n)+)\r\n"
)
_FIELD = re.compile(r"([^:]+): (.*)\r\n")
_LENGTH = "content-length"
_NEEDED = frozenset({"host", _LENGTH})
_PARSERS = frozenset({"transfer-encoding", "upgrade", "expect", "proxy-connection", "sec-websocket-key1"})
_MAX_FIELDS = 100
_MAX_HEAD = 16 * 1024
"""Bytes of a plain head: far below what the parser takes of one line."""


def question(target: str, fields: Iterable[tuple[str, str]], body: bytes) -> Question:
    """The question of a request that was parsed. `target` and values are as they were sent."""
    return (target, *[(name, value) for given, value in fields if (name := given.lower()) in MATTERS], body)


def of_bytes(data: bytes) -> Question | None:
    """The question of a request that these bytes are, all of it and nothing else; None where the parser must say.

    Plain is a head in the simplest spelling, each field once, framed by its length alone (RFC 9112 section 6.2).
    """
    found = _HEAD.match(data, 0, _MAX_HEAD)
    if found is None:
        return None
    end = found.end()
    asked = _asked(found)
    if asked is None or asked.length != str(len(data) - end):
        return None
    return (*asked.before, data[end:])


def of_head(data: bytes) -> Question | None:
    """As much of a question as a plain head tells whose body is still to come; None for all other bytes."""
    found = _HEAD.fullmatch(data) if len(data) <= _MAX_HEAD else None
    if found is None:
        return None
    asked = _asked(found)
    return None if asked is None else asked.before


class _Asked(NamedTuple):
    """`before`: the question without its body; `length`: what the head says of that."""

    before: Question
    length: str


def _asked(head: re.Match[bytes]) -> _Asked | None:
    """None where the parser must say what the fields mean."""
    fields = [(name.lower(), value) for name, value in _FIELD.findall(head[2].decode("ascii"))]
    names = dict(fields)
    if len(names) != len(fields) or len(fields) > _MAX_FIELDS or not names.keys() >= _NEEDED:
        return None
    if not _PARSERS.isdisjoint(names):
        return None
    return _Asked((head[1].decode("ascii"), *[field for field in fields if field[0] in MATTERS]), names[_LENGTH])
