"""What a run of requests gave, and how unlike an undisturbed run it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from loadtest.drift.bleu import bleu


@dataclass(frozen=True)
class Output:
    """The tokens of one answer, and the log-probability in nats that the model gave each (before temperature)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def first_difference(output: Output, control: Output) -> int | None:
    """The place of the first token that differs, from 0; None where there is none."""
    if output.tokens == control.tokens:
        return None
    pairs = zip(output.tokens, control.tokens, strict=False)
    shorter = min(len(output.tokens), len(control.tokens))
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)


def perplexity(outputs: Sequence[Output], after: int) -> float:
    """Of the tokens from place `after` on, all outputs together."""
    logprobs = [value for output in outputs for value in output.logprobs[after:]]
    return math.exp(-fmean(logprobs))


def compare(outputs: Sequence[Output], control: Sequence[Output], after: int) -> dict[str, Any]:
    """Figures of a run that was disturbed after `after` tokens, against one that was not."""
    pairs = list(zip(outputs, control, strict=True))
    places = [place for output, like in pairs if (place := first_difference(output, like)) is not None]
    return {
        "requests": len(outputs),
        "changed": len(places),
        "first_difference": {"least": min(places), "median": median(places)} if places else None,
        "self_bleu": fmean(bleu(output.tokens, like.tokens) for output, like in pairs),
        "self_bleu_after": fmean(bleu(output.tokens[after:], like.tokens[after:]) for output, like in pairs),
        "perplexity_after": perplexity(outputs, after),
        "perplexity_jump": perplexity(outputs, after) / perplexity(control, after),
    }
