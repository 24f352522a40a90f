"""The two tokens at the first difference, and how close they were: what tells rounding from a real change."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from samewise.core.families.contract import Output

NUMBERED = "token_id:"
"""What tokens are called that are named by their ids (vLLM's `return_tokens_as_token_ids`)."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token at the first difference; `token` is empty where only its id (or not even that) is known.

    Log-probabilities are nats as either side told them, None where it did not.
    """

    token: str = ""
    token_id: int | None = None
    recorded_logprob: float | None = None
    recomputed_logprob: float | None = None


def by_id(recorded: Output, recomputed: Output, position: int) -> tuple[Candidate, Candidate]:
    """The recorded and the recomputed token at a token position."""
    sides = (recorded, recomputed)
    places = tuple(position if len(side.tokens or ()) == len(side.token_ids or ()) else None for side in sides)
    ids = [None if position >= len(side.token_ids or ()) else (side.token_ids or ())[position] for side in sides]
    by_number = any(side.tokens and side.tokens[0].startswith(NUMBERED) for side in sides)
    names = [f"{NUMBERED}{token_id}" if by_number and token_id is not None else None for token_id in ids]
    found = _pair(recorded, recomputed, places[0], places[1], names)
    first, second = (
        msgspec.structs.replace(
            candidate, token_id=token_id, token="" if candidate.token.startswith(NUMBERED) else candidate.token
        )
        for candidate, token_id in zip(found, ids, strict=True)
    )
    return first, second


def by_text(recorded: Output, recomputed: Output, position: int) -> tuple[Candidate, Candidate]:
    """The recorded and the recomputed token at a position in characters, as far as tokens are known."""
    first, second = _token_at(recorded, position), _token_at(recomputed, position)
    if first is not None and second is not None:
        pairs = zip(recorded.tokens or (), recomputed.tokens or (), strict=False)
        first = second = next((at for at, (one, other) in enumerate(pairs) if one != other), min(first, second))
    return _pair(recorded, recomputed, first, second)


def gap(pair: tuple[Candidate, Candidate]) -> float | None:
    """The larger distance in nats between the two, over the sides that know both; None where none does."""
    first, second = pair
    sides = (
        (first.recorded_logprob, second.recorded_logprob),
        (first.recomputed_logprob, second.recomputed_logprob),
    )
    known = [abs(a - b) for a, b in sides if a is not None and b is not None]
    return max((distance for distance in known if math.isfinite(distance)), default=None)


def _pair(
    recorded: Output,
    recomputed: Output,
    first: int | None,
    second: int | None,
    known: Sequence[str | None] = (None, None),
) -> tuple[Candidate, Candidate]:
    """Both tokens, and what each side told of both; `first` and `second` are their places in `tokens`.

    `known`: what they are called, where that is known beforehand.
    """
    names = [known[0] or _name(recorded, first), known[1] or _name(recomputed, second)]
    if names[0] is None:
        names[0] = _guess(recomputed, second, recorded.text)
    if names[1] is None:
        names[1] = _guess(recorded, first, recomputed.text)
    alike = names[0] == names[1]
    one, other = (
        Candidate(
            token=name or "",
            recorded_logprob=None if alike and side == 1 else _logprob(recorded, first, name),
            recomputed_logprob=None if alike and side == 0 else _logprob(recomputed, second, name),
        )
        for side, name in enumerate(names)
    )
    return one, other


def _name(side: Output, place: int | None) -> str | None:
    return side.tokens[place] if side.tokens is not None and place is not None and place < len(side.tokens) else None


def _logprob(side: Output, place: int | None, name: str | None) -> float | None:
    if place is None or name is None or side.logprobs is None or place >= len(side.logprobs):
        return None
    if name == _name(side, place):
        return side.logprobs[place]
    return side.candidates[place].get(name) if side.candidates is not None and place < len(side.candidates) else None


def _token_at(side: Output, position: int) -> int | None:
    """The place of the token that holds a character; None where the tokens don't make up the text."""
    if not side.tokens or "".join(side.tokens) != side.text:
        return None
    end = 0
    for place, token in enumerate(side.tokens):
        end += len(token)
        if end > position:
            return place
    return len(side.tokens)


def _guess(side: Output, place: int | None, text: str) -> str | None:
    """The longest candidate at that place, other than the chosen one, with which the other side's text goes on."""
    if place is None or not side.tokens or not side.candidates or place >= len(side.candidates):
        return None
    start = len("".join(side.tokens[:place]))
    if side.text[:start] != text[:start] or "".join(side.tokens[:place]) != side.text[:start]:
        return None
    fitting = [
        name for name in side.candidates[place] if name and name != side.tokens[place] and text.startswith(name, start)
    ]
    return max(fitting, key=len, default=None)
