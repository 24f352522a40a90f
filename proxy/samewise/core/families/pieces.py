"""Cutting a text into the pieces of a stream, never inside what a reader sees as one character."""

from __future__ import annotations

import itertools
import unicodedata

PIECE = 16
"""Characters of a piece, unless the text is so long that there would be more than MOST."""
MOST = 64

_ZERO_WIDTH_JOINER = "\u200d"
_VIRAMA = 9
_EXTENDING = frozenset("\u0e33\u0eb3\u200c\u200d\uff9e\uff9f")


def pieces(text: str) -> list[str]:
    """The text in order, in at least two pieces wherever it has two characters (grapheme clusters)."""
    if not text:
        return []
    size = max(1, min(PIECE, len(text) // 2), -(-len(text) // MOST))
    cuts = [0]
    while (cut := next_cut(text, cuts[-1] + size)) < len(text):
        cuts.append(cut)
    if len(cuts) == 1 and (cut := next_cut(text, 1)) < len(text):
        cuts.append(cut)
    cuts.append(len(text))
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def next_cut(text: str, position: int) -> int:
    """The first place from `position` on where the text may be cut; its length where there is none."""
    while position < len(text) and not may_cut(text, position):
        position += 1
    return min(position, len(text))


def may_cut(text: str, position: int) -> bool:
    """True where no grapheme cluster spans the position (Unicode annex 29, simplified to be cautious)."""
    if not 0 < position < len(text):
        return True
    before, after = text[position - 1], text[position]
    if before < "\x80" and after < "\x80":
        return not (before == "\r" and after == "\n")
    if after in _EXTENDING or _modifies(after) or before == _ZERO_WIDTH_JOINER:
        return False
    if _regional(before) and _regional(after):
        return _run_of_regional(text, position) % 2 == 0
    if unicodedata.combining(before) == _VIRAMA or _prepends(before):
        return False
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return False
    return not (_jamo(before) and _jamo(after))


def _modifies(char: str) -> bool:
    if "\U0001f3fb" <= char <= "\U0001f3ff" or "\U000e0020" <= char <= "\U000e007f":
        return True
    return unicodedata.category(char) in ("Mn", "Mc", "Me")


def _prepends(char: str) -> bool:
    return "\u0600" <= char <= "\u0605" or char in "\u06dd\u070f\u08e2\U000110bd"


def _regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _run_of_regional(text: str, position: int) -> int:
    start = position
    while start > 0 and _regional(text[start - 1]):
        start -= 1
    return position - start


def _jamo(char: str) -> bool:
    return "\u1100" <= char <= "\u11ff" or "\ua960" <= char <= "\ua97c" or "\uac00" <= char <= "\ud7fb"
