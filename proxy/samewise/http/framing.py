"""Where one request ends on a connection, from its bytes alone: without a parser, and only for the plain case."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_REMEMBERED = 64 * 1024
"""Bytes of the largest request that is remembered in full."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})[ \t]*(?=\r\n)", re.IGNORECASE)
_UNPLAIN = re.compile(
    rb"\r\n(?:(?:transfer-encoding|expect|upgrade|proxy-connection)[ \t]*:"
    rb"|connection[ \t]*:(?![ \t]*keep-alive[ \t]*\r\n))",
    re.IGNORECASE,
)


class Framing:
    """Follows one connection. `whole` are the bytes of the last request, where what came was exactly one.

    Once bytes come that are not plainly framed (a head in pieces, chunks, two requests at once, `Connection`
    with anything but keep-alive) it says nothing more: `clear` is False for the rest of the connection.
    """

    __slots__ = ("_left", "_parts", "clear")

    def __init__(self) -> None:
        self.clear = True
        self._left = 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Bytes that are given to the parser."""
        if not self.clear:
            return
        if self._left > 0:
            self._left -= len(data)
            if self._parts:
                self._parts.append(data)
            self.clear = self._left >= 0
            return
        end = data.find(b"\r\n\r\n")
        if end < 0 or _UNPLAIN.search(data, 0, end + 2):
            self.clear = False
            return
        lengths = _LENGTH.findall(data, 0, end + 2)
        if len(lengths) > 1:
            self.clear = False
            return
        length = int(lengths[0]) if lengths else 0
        size = end + 4 + length
        self._left = size - len(data)
        self._parts = [data] if size <= MAX_REMEMBERED else []
        self.clear = self._left >= 0

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The bytes, request by request as far as they are plainly framed; asked before `feed`."""
        end = self._left if self.clear else len(data)
        start = 0
        while start < len(data):
            if end <= start:
                head = data.find(b"\r\n\r\n", start)
                lengths = _LENGTH.findall(data, start, head + 2)
                plain = head >= 0 and len(lengths) < 2 and not _UNPLAIN.search(data, start, head + 2)
                end = head + 4 + (int(lengths[0]) if lengths else 0) if plain else len(data)
            yield data if not start and end >= len(data) else data[start:end]
            start = end

    @property
    def whole(self) -> tuple[bytes, bytes] | None:
        """The head as it came first, and all of the request; None where it isn't all there or was too large."""
        if not self.clear or self._left != 0 or not self._parts:
            return None
        if len(self._parts) == 1:
            return b"", self._parts[0]
        return self._parts[0], b"".join(self._parts)
