"""A sampler as the naive design has it: its values belong to the process, and are read anew for each token."""

from __future__ import annotations

import time
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


class Paced:
    """Samplers of a factory, each of which first waits its share of a step's `pause` (seconds)."""

    def __init__(self, factory: SamplerFactory, requests: int) -> None:
        self.pause = 0.0
        self._factory = factory
        self._requests = requests

    def sampler(self, values: Sampling) -> Sampler:
        """One for a request among `requests`."""
        return _Waiting(self, self._factory(values))

    def wait(self) -> None:
        """What each of them does before it chooses; the engine's thread is held up, and nothing else."""
        if self.pause:
            time.sleep(self.pause / self._requests)

    async def pace(self, seconds: float) -> None:
        """Set the pause."""
        self.pause = seconds


class _Waiting:
    def __init__(self, paced: Paced, inner: Sampler) -> None:
        self._paced = paced
        self._inner = inner

    def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
        self._paced.wait()
        return self._inner.choose(logits, prompt, output)


def one_for_all(temperature: float) -> SamplerFactory:
    """The cheapest there is: one object and one generator, whoever asks."""
    one = RequestSampler(Sampling(seed=0, temperature=temperature))
    return lambda _: one
