"""Runs inside vLLM's worker: changes the temperature of what runs, as a process-wide sampler object would.

And slows its steps down, so that there is time to change it.
"""

from __future__ import annotations

import time
from typing import Any

from samewise_backend.vllm_worker import Report


class Drift(Report):
    """vLLM itself copies a request's values at admission; only from inside its worker can they be changed."""

    model_runner: Any
    drift_step: Any = None
    drift_seconds = 0.0

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

    def drift_pause(self, seconds: str) -> int:
        """From now on each step waits so long before it begins."""
        self.drift_seconds = float(seconds)
        if self.drift_step is None:
            self.drift_step = self.model_runner.execute_model
            self.model_runner.execute_model = self._drift_slowly
        return 1

    def _drift_slowly(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.drift_seconds)
        return self.drift_step(*args, **kwargs)
