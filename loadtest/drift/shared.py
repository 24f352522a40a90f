"""A sampler as the naive design has it: its values belong to the process, and are read anew for each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samewise_backend.sampler import RequestSampler, Sampler, SamplerFactory, Sampling


class ProcessWide:
    """Values that all requests share. Each request has its own generator, so that temperature is all that drifts."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def sampler(self, values: Sampling) -> Sampler:
        """A sampler for one request; what the request said of temperature is the process's by now."""
        return _Reading(self, values)


class _Reading:
    def __init__(self, process: ProcessWide, values: Sampling) -> None:
        self._process = process
        self._asked = values.temperature
        self._inner = RequestSampler(values)

    def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
        if self._process.temperature != self._asked:
            logits.mul_(self._asked / self._process.temperature)
        return self._inner.choose(logits, prompt, output)


def one_for_all(temperature: float) -> SamplerFactory:
    """The cheapest there is: one object and one generator, whoever asks."""
    one = RequestSampler(Sampling(seed=0, temperature=temperature))
    return lambda _: one
