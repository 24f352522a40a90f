"""Runs inside vLLM's worker: changes the temperature of what runs, as a process-wide sampler object would."""

from __future__ import annotations

from typing import Any

from samewise_backend.vllm_worker import Report


class Drift(Report):
    """vLLM itself copies a request's values at admission; only from inside its worker can they be changed."""

    model_runner: Any

    def drift(self, temperature: str) -> int:
        """Every running request that isn't greedy gets this temperature; how many that were."""
        batch = self.model_runner.input_batch
        changed = 0
        for at in range(batch.num_reqs):
            if batch.temperature_cpu[at] > 0:
                batch.temperature_cpu[at] = float(temperature)
                changed += 1
        batch.sampling_metadata = batch._make_sampling_metadata()
        return changed
