"""Tokens to text, one at a time, and the strings that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

_INVALID_PREFIX = "Invalid prefix encountered"


class Detokeniser:
    """Text of one choice as its tokens come. Bytes that are not yet a character wait for the next token.

    `tokenizer` is a `tokenizers.Tokenizer`. The prompt primes it, so that spaces come out as in one text.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=skip_special)

    def add(self, token: int) -> str:
        """The text that is complete with this token."""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if not str(error).startswith(_INVALID_PREFIX):
                raise
        self._stream = DecodeStream(skip_special_tokens=self._skip_special)
        return self._stream.step(self._tokenizer, token) or ""


class Output:
    """The text of one choice and how much of it may be shown: a stop string must never be shown in part.

    Stop strings count from `min_tokens` tokens on; with `include` the one that matched is part of the text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False, min_tokens: int = 0) -> None:
        self.text = ""
        self._stops = tuple(stops)
        self._include = include
        self._min_tokens = min_tokens
        self._produced = 0
        self._shown = 0
        self._hold = 0 if include or not stops else max(map(len, stops)) - 1

    def add(self, piece: str) -> str | None:
        """Take the text of one more token. The stop string that it completes, None where it completes none."""
        self._produced += 1
        self.text += piece
        if not piece or self._produced <= self._min_tokens:
            return None
        for stop in self._stops:
            at = self.text.find(stop, max(0, len(self.text) - len(piece) - len(stop) + 1))
            if at >= 0:
                self.text = self.text[: at + len(stop)] if self._include else self.text[:at]
                return stop
        return None

    def take(self, *, finished: bool) -> str:
        """What may be shown and was not yet."""
        end = len(self.text) if finished else len(self.text) - self._hold
        if end <= self._shown:
            return ""
        fresh = self.text[self._shown : end]
        self._shown = end
        return fresh


def token_text(tokenizer: Any, token: int) -> str:
    """One token on its own, empty where it is only a part of a character."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else text
