"""Runs inside vLLM's workers, through `--worker-extension-cls`.

Importing it sets the table's torch rows: vLLM imports it before a worker touches its device, and offers
no other moment that early.
"""

from __future__ import annotations

from typing import Any

from samewise_backend.determinism import apply_to_torch, torch_state

apply_to_torch()


class Report:
    """Methods that the middleware calls in every worker (`collective_rpc`)."""

    def samewise_report(self) -> dict[str, Any]:
        """What this worker really runs with."""
        runner = getattr(self, "model_runner", None)
        return {"torch": torch_state(), "attention": attention_backends(runner)}


def attention_backends(runner: Any) -> list[str]:
    """Names of the attention backends that a model runner chose, sorted; empty where it doesn't say."""
    names = set()
    for groups in getattr(runner, "attn_groups", None) or []:
        for group in groups:
            backend = getattr(group, "backend", None)
            name = getattr(backend, "get_name", None)
            if callable(name):
                names.add(str(name()))
    return sorted(names)
