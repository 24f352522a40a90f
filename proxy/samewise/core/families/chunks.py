"""Where a text may be cut so that its tokens and their log-probabilities stay with their piece of it."""

from __future__ import annotations

from typing import Any

from samewise.core.families import pieces, wire

Piece = tuple[str, int, int]
"""A piece of a text, and which of its tokens (from, up to) made it."""


def aligned(text: str, tokens: list[str], count: int | None) -> list[Piece] | None:
    """Pieces cut between tokens; None where the tokens (or their `count` of ids) don't make up the text."""
    if not tokens or count not in (None, len(tokens)) or "".join(tokens) != text:
        return None
    size = max(1, min(pieces.PIECE, len(text) // 2), -(-len(text) // pieces.MOST))
    found: list[Piece] = []
    first = start = end = 0
    for at, token in enumerate(tokens):
        end += len(token)
        if end - start >= size and end < len(text) and pieces.may_cut(text, end):
            found.append((text[start:end], first, at + 1))
            first, start = at + 1, end
    found.append((text[start:], first, len(tokens)))
    return found if len(found) > 1 or len(pieces.pieces(text)) == 1 else None


def chat_tokens(logprobs: Any) -> list[str]:
    """The tokens that chat's `logprobs` speaks of, empty where it speaks of none."""
    return _texts([item.get("token") for item in wire.objects(wire.mapping(logprobs).get("content"))])


def text_tokens(logprobs: Any) -> list[str]:
    """The tokens that the `logprobs` of text completions speaks of, empty where it speaks of none."""
    return _texts(wire.mapping(logprobs).get("tokens"))


def cut_lists(value: dict[str, Any], start: int, end: int, count: int) -> dict[str, Any]:
    """The object with its lists of `count` items cut to one piece; other members come with the first piece."""
    cut = {name: item[start:end] for name, item in value.items() if isinstance(item, list) and len(item) == count}
    return {**{name: item for name, item in value.items() if start == 0}, **cut}


def _texts(tokens: Any) -> list[str]:
    return tokens if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else []
