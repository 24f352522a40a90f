"""Choosing a token. A sampler belongs to one choice of one request: its own generator, its own frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

MIN_TEMPERATURE = 0.01
"""Temperatures above 0 and below this one are raised to it, as vLLM does (sampling_params.py)."""


@dataclass(frozen=True)
class Sampling:
    """The values that one choice is sampled with. `seed` is the choice's own; `top_k` 0 and `min_p` 0 are off.

    `hold_back` are the tokens that end an answer, impossible before `min_tokens` tokens.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    min_tokens: int = 0
    hold_back: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Sampler(Protocol):
    """What the engine asks for each token."""

    def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
        """A token, given logits of shape [vocabulary] in float32 on the CPU, which it may overwrite."""
        ...


SamplerFactory = Callable[[Sampling], Sampler]


class RequestSampler:
    """Draws as vLLM defines the values; the order of the steps is that of its `Sampler` (v1/sample/sampler.py).

    The result depends on the logits, the tokens so far, the values and the seed: on nothing that another
    request or the process could change.
    """

    def __init__(self, values: Sampling) -> None:
        self._values = values
        self._generator = torch.Generator().manual_seed(values.seed % 2**64)
        self._bias_ids = torch.tensor([token for token, _ in values.logit_bias], dtype=torch.long)
        self._bias = torch.tensor([bias for _, bias in values.logit_bias], dtype=torch.float32)

    def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
        values = self._values
        self._mask(logits, len(output))
        if values.logit_bias:
            logits.index_add_(0, self._bias_ids, self._bias)
        self._penalise(logits, prompt, output)
        if values.greedy:
            return int(logits.argmax())
        logits.div_(max(values.temperature, MIN_TEMPERATURE))
        self._restrict(logits)
        probabilities = logits.softmax(dim=-1)
        race = torch.empty_like(probabilities).exponential_(generator=self._generator)
        return int(probabilities.div_(race).argmax())

    def _mask(self, logits: torch.Tensor, produced: int) -> None:
        values = self._values
        if values.allowed:
            keep = torch.full_like(logits, float("-inf"))
            allowed = torch.tensor(values.allowed, dtype=torch.long)
            keep[allowed] = logits[allowed]
            logits.copy_(keep)
        if produced < values.min_tokens and values.hold_back:
            logits[torch.tensor(values.hold_back, dtype=torch.long)] = float("-inf")

    def _penalise(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        values = self._values
        if values.repetition_penalty != 1.0 and (prompt or output):
            seen = torch.tensor(sorted({*prompt, *output}), dtype=torch.long)
            picked = logits[seen]
            penalty = values.repetition_penalty
            logits[seen] = torch.where(picked > 0, picked / penalty, picked * penalty)
        if output and (values.frequency_penalty or values.presence_penalty):
            counts = Counter(output)
            tokens = torch.tensor(sorted(counts), dtype=torch.long)
            times = torch.tensor([counts[token] for token in sorted(counts)], dtype=torch.float32)
            logits[tokens] -= values.frequency_penalty * times + values.presence_penalty

    def _restrict(self, logits: torch.Tensor) -> None:
        values = self._values
        nothing = float("-inf")
        if values.min_p > 0.0:
            probabilities = logits.softmax(dim=-1)
            logits[probabilities < values.min_p * probabilities.max()] = nothing
        if 0 < values.top_k < logits.numel():
            least = logits.topk(values.top_k).values[-1]
            logits[logits < least] = nothing
        if values.top_p < 1.0:
            ordered, order = logits.sort(descending=False, stable=True)
            beyond = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1.0 - values.top_p
            beyond[-1] = False
            logits[order[beyond]] = nothing
