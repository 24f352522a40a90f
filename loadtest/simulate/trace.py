"""Who asks what when: conversations in bursts, with system prompts of which few are asked for often.

Shapes from public sources: turns and tokens a conversation have the means of LMSYS-Chat-1M (arXiv 2309.11998, basic
statistics); arrivals are a Gamma process and answers exponential as in ServeGen (arXiv 2505.09999) and BurstGPT (arXiv
2401.17644), which find both in production. What neither says is ours and stands in `Shape`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

CHARACTERS = 4
"""Of text in a token."""


@dataclass(frozen=True)
class Shape:
    """Times in seconds, lengths in tokens. `burst` is the coefficient of variation between arrivals; 1 is Poisson."""

    requests: int = 24_000
    rate: float = 160.0
    burst: float = 2.0
    turns: float = 2.0
    question: float = 69.5
    answer: float = 214.5
    systems: int = 200
    zipf: float = 1.0
    system: float = 800.0
    think: float = 15.0


@dataclass(frozen=True)
class Turn:
    """What the user says after having thought, and how long the answer will be."""

    question: str
    answer: int
    think: float


@dataclass(frozen=True, eq=False)
class Conversation:
    """Begins at `at`, in seconds."""

    at: float
    number: int
    system: str
    turns: tuple[Turn, ...]

    @cached_property
    def messages(self) -> list[dict[str, str]]:
        """All of it, answers included."""
        said = [{"role": "system", "content": self.system}]
        for at, turn in enumerate(self.turns):
            answer = random.Random(f"answer {self.number} {at}")
            said.append({"role": "user", "content": turn.question})
            said.append({"role": "assistant", "content": text(answer, turn.answer)})
        return said

    def request(self, turn: int) -> dict[str, Any]:
        """The body of that turn's request; the first is 0."""
        return {"model": "m", "messages": self.messages[: 2 + 2 * turn]}


def text(source: random.Random, tokens: int) -> str:
    """Nonsense of that length."""
    return source.randbytes(CHARACTERS * tokens // 2).hex()


def conversations(shape: Shape, seed: int) -> Iterator[Conversation]:
    """Until their turns are as many as `shape.requests`; the same ones for the same seed."""
    source = random.Random(seed)
    systems = [text(source, _lognormal(source, shape.system, 0.8)) for _ in range(shape.systems)]
    weights = list(accumulate(1 / (rank + 1) ** shape.zipf for rank in range(shape.systems)))
    form = 1 / shape.burst**2
    at, left, number = 0.0, shape.requests, 0
    while left > 0:
        at += source.gammavariate(form, shape.turns / shape.rate / form)
        count = min(left, 1 + int(math.log(1 - source.random()) / math.log(1 - 1 / shape.turns)))
        turns = tuple(
            Turn(
                text(source, _lognormal(source, shape.question, 1.0)),
                max(1, round(source.expovariate(1 / shape.answer))),
                source.expovariate(1 / shape.think),
            )
            for _ in range(count)
        )
        yield Conversation(at, number, source.choices(systems, cum_weights=weights)[0], turns)
        left, number = left - count, number + 1


def _lognormal(source: random.Random, mean: float, sigma: float) -> int:
    return max(1, round(source.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))
