"""Folding the deltas of a stream into what a whole answer would have said.

Nothing here knows the fields of one API by name, except those that name or number a thing rather than
say a part of it: they are not joined to themselves when a server repeats them in every chunk.
"""

from __future__ import annotations

from typing import Any

FIRST = frozenset(
    {"id", "object", "created", "model", "role", "name", "type", "index", "call_id", "format", "prompt_token_ids"}
)
"""Members of which the first non-empty value holds."""
LAST = frozenset({"finish_reason", "stop_reason", "native_finish_reason", "status", "phase", "encoding"})
"""Members of which the last non-null value holds."""
NOISE = frozenset({"obfuscation"})
"""Members that pad a stream against eavesdroppers and say nothing."""


def extend(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add one delta to what came before: texts join, lists grow, lists of numbered parts merge by `index`."""
    for name, value in delta.items():
        if name in NOISE:
            continue
        known = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif name in FIRST:
            if known in (None, "", []):
                whole[name] = value
        elif name in LAST or not isinstance(value, str | list | dict):
            whole[name] = value
        elif isinstance(value, str):
            whole[name] = known + value if isinstance(known, str) else value
        elif isinstance(value, list):
            whole[name] = _grow(known if isinstance(known, list) else [], value)
        else:
            part: dict[str, Any] = known if isinstance(known, dict) else {}
            extend(part, value)
            whole[name] = part


def keep(whole: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Add what surrounds the deltas of a chunk: the first id and time hold, else the last non-null value."""
    for name, value in envelope.items():
        if name in NOISE:
            continue
        if value is None:
            whole.setdefault(name, None)
        elif name not in FIRST or whole.get(name) in (None, "", []):
            whole[name] = value


def _grow(known: list[Any], more: list[Any]) -> list[Any]:
    if not _numbered(more):
        known.extend(more)
        return known
    by_index = {part.get("index"): part for part in known if isinstance(part, dict)}
    for part in more:
        index = part["index"]
        if index not in by_index:
            by_index[index] = {}
            known.append(by_index[index])
        extend(by_index[index], part)
    return known


def _numbered(parts: list[Any]) -> bool:
    return bool(parts) and all(isinstance(part, dict) and isinstance(part.get("index"), int) for part in parts)
