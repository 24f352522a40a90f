"""Server-sent events (WHATWG HTML section 9.2), parsed as the bytes come, whatever the split."""

from __future__ import annotations

from samewise.core.answer import Event

MAX_EVENT = 64 << 20
"""Bytes of one event, its field names included, unless another limit is given."""

_BOM = b"\xef\xbb\xbf"
_END = b"\n\n"
_ONE_LINE = b"data: "
_NEXT = _END + _ONE_LINE


class EventTooLarge(ValueError):
    """An event is larger than the limit. `events` are those that were whole before it."""

    def __init__(self, limit: int, events: list[Event]) -> None:
        super().__init__(f"a server-sent event is larger than {limit} bytes")
        self.events = events


class Parser:
    """Bytes in, events out; a byte is looked at a bounded number of times, so the time is linear.

    Any split of the same bytes gives the same events. Lines end with LF, CRLF or CR. An event without
    data, or with empty data (keep-alives, `retry:`), dispatches nothing; `id` and `retry` are dropped.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max = max_event
        self._pieces: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._head: bytes | None = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Raises EventTooLarge, after which the parser is of no use."""
        data = self._plain(data)
        if not data:
            return []
        pieces = self._pieces
        if pieces:
            joins = data[0] == 0x0A and pieces[-1][-1] == 0x0A
            pieces.append(data)
            self._size += len(data)
            if not joins and (b"\n" not in data or _END not in data):
                self._limit([])
                return []
            data = b"".join(pieces)
            pieces.clear()
        end = data.rfind(_END)
        rest = (data[end + len(_END) :] if end >= 0 else data).lstrip(b"\n")
        self._size = len(rest)
        if rest:
            pieces.append(rest)
        events = self._events(data[:end]) if end >= 0 else []
        self._limit(events)
        return events

    def unterminated(self) -> bool:
        """True where the bytes so far end within an event: it was begun and its blank line did not come.

        Comments, and whole lines that belong to no event (`id`, `retry`), are not one.
        """
        if self._head:
            return True
        *lines, last = b"".join(self._pieces).split(b"\n")
        if last and not last.startswith(b":"):
            return True
        return any(line.partition(b":")[0] in {b"data", b"event"} for line in lines)

    def _events(self, data: bytes) -> list[Event]:
        """Those between blank lines; one by one where not each of them is a single line of data."""
        if len(data) <= self._max and data.startswith(_ONE_LINE):
            lines = data[len(_ONE_LINE) :].split(_NEXT)
            if data.count(b"\n") == len(_END) * (len(lines) - 1) and b"" not in lines:
                return [Event(line) for line in lines]
        events: list[Event] = []
        for block in data.split(_END):
            if len(block) > self._max and len(block.lstrip(b"\n")) > self._max:
                raise EventTooLarge(self._max, events)
            if (event := _event(block)) is not None:
                events.append(event)
        return events

    def _limit(self, events: list[Event]) -> None:
        """What is pending may have the line end that belongs to the blank line after it."""
        if self._size > self._max + 1:
            raise EventTooLarge(self._max, events)

    def _plain(self, data: bytes) -> bytes:
        """Without the byte order mark at the start, each line end as one LF."""
        if self._head is not None:
            data = self._head + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._head = data
                return b""
            self._head = None
            data = data.removeprefix(_BOM)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data


def _event(block: bytes) -> Event | None:
    """The event of the lines between two blank lines."""
    name: str | None = None
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace") or None
    joined = b"\n".join(data)
    return Event(joined, name) if joined else None
