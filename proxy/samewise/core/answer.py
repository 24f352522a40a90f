"""An answer of an upstream, as it was recorded: a JSON body, or the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Headers = tuple[tuple[str, str], ...]


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One server-sent event that carried data. `name` is its `event:` field, None where there was none."""

    data: bytes
    name: str | None = None


DONE = b"[DONE]"


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens as the upstream counted them; `cached_tokens` is prefix KV reuse, never a hit of ours."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What was answered. `form` says which of `body` (json) and `events` (sse) is filled.

    `headers` are the end-to-end response headers worth replaying, names in lower case; framing,
    hop-by-hop, cookies and everything that belongs to one exchange alone are not among them.
    """

    form: Literal["json", "sse"]
    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    events: tuple[Event, ...] = ()

    def size(self) -> int:
        """Bytes of payload."""
        return len(self.body) if self.form == "json" else payload(self.events)


def payload(events: Sequence[Event]) -> int:
    """Bytes that the events carry."""
    return sum([len(event.data) for event in events])
