"""What of a request a backend may have in its prefix cache: everything that comes first in the prompt, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from samewise.core.body import write
from samewise.core.salt import MEMBER

_BEFORE = (
    "model",
    MEMBER,
    "chat_template",
    "chat_template_kwargs",
    "tools",
    "functions",
    "instructions",
    "system",
)
_PROMPTS = ("messages", "prompt", "input", "query", "text_1")
_NOTHING = write(None)
_SEPARATOR = b"\x1e"
ROUTED = 256 << 10
"""Bytes of a prompt, about 64,000 tokens, by which it is routed: what comes later decides nothing."""


def prompt_prefix(request: Mapping[str, Any], salt: str = "") -> bytes:
    """Bytes of which a longer conversation's begin with a shorter one's.

    `salt`: the `cache_salt` that is sent where the request has none of its own. At most `ROUTED` bytes, however
    long the prompt is. Routing alone depends on them: what is left out here costs reuse, never correctness.
    """
    before = {MEMBER: salt or None, **request}
    parts = [_NOTHING if (value := before.get(name)) is None else write(_clipped(value)) for name in _BEFORE]
    room = ROUTED - sum(map(len, parts))
    for name in _PROMPTS:
        for part in _prompt(request.get(name)):
            if room <= 0:
                break
            parts.append(part)
            room -= len(part)
    return _SEPARATOR.join(parts)[:ROUTED]


def _prompt(value: Any) -> Iterator[bytes]:
    match value:
        case None:
            return
        case str():
            yield value[:ROUTED].encode("utf-8", "surrogatepass")
        case [dict() | list(), *_]:
            for item in value:
                yield write(_clipped(item))
        case [*items]:
            yield write(_clipped(items))[:-1]
        case _:
            yield write(_clipped(value))


def _clipped(value: Any) -> Any:
    """The value without what lies beyond `ROUTED` bytes in any case."""
    match value:
        case str():
            return value[:ROUTED]
        case dict():
            return {name: _clipped(item) for name, item in value.items()}
        case [int() | float(), *_]:
            return value[: ROUTED // 2]
        case list():
            return [_clipped(item) for item in value]
        case _:
            return value
