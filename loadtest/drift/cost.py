"""What it costs that each request has a sampler of its own: tokens a second of CPU time, in interleaved pairs."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtest.drift.client import COLD
from loadtest.drift.shared import one_for_all
from samewise_backend.engine import Engine, Event, Failed, Job, Step
from samewise_backend.language_model import LanguageModel
from samewise_backend.sampler import RequestSampler, SamplerFactory, Sampling

JOBS, TOKENS = 8, 12


@dataclass(frozen=True)
class Pair:
    """Tokens a second of CPU time with one sampler for the process, and with one for each request."""

    shared: float
    isolated: float

    @property
    def cost(self) -> float:
        """The share of throughput that isolation takes; negative where it was faster."""
        return 1.0 - self.isolated / self.shared


def measure(model: LanguageModel, pairs: int) -> dict[str, Any]:
    """Every second pair is measured in the other order, so that what drifts (heat, caches) favours neither."""
    factories = (one_for_all(COLD), RequestSampler)
    for factory in factories:
        _rate(model, factory)
    found = []
    for at in range(pairs):
        if at % 2:
            isolated = _rate(model, factories[1])
            found.append(Pair(_rate(model, factories[0]), isolated))
        else:
            shared = _rate(model, factories[0])
            found.append(Pair(shared, _rate(model, factories[1])))
    costs = sorted(pair.cost for pair in found)
    return {
        "pairs": pairs,
        "tokens_per_cpu_second": {
            "process_wide": median(pair.shared for pair in found),
            "isolated": median(pair.isolated for pair in found),
        },
        "cost": median(costs),
        "cost_quartiles": [costs[len(costs) // 4], costs[-1 - len(costs) // 4]],
    }


def _rate(model: LanguageModel, factory: SamplerFactory) -> float:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine = Engine(model, sampler=factory)
    for seed in range(JOBS):
        job = Job(
            prompt=(5 + seed, 17, 42),
            sampling=Sampling(seed=seed, temperature=COLD),
            max_tokens=TOKENS,
            deliver=events.put,
        )
        engine.submit(job)
    began = time.process_time()
    engine.start()
    left = JOBS
    while left:
        match events.get():
            case Step(finish=finish):
                left -= finish is not None
            case Failed(message):
                raise RuntimeError(message)
    spent = time.process_time() - began
    engine.close()
    return JOBS * TOKENS / spent
