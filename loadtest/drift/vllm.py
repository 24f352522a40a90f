"""The experiment on a real vLLM: a worker extension plays the part of the process-wide object."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from loadtest.drift.client import AT, COLD, WARM, questions, run
from loadtest.drift.figures import compare
from loadtest.drift.samewise import through_samewise
from samewise_backend import tiny_model
from tests.support.vllm import ROOT, VllmServer

EXTENSION = "loadtest.drift.worker.Drift"
_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "PYTHONPATH": str(ROOT)}


async def experiment(requests: int) -> dict[str, Any]:
    """Figures as those of the reference engine. Raises RuntimeError where there is no vLLM or it doesn't start."""
    with tempfile.TemporaryDirectory(prefix="samewise-drift-") as folder:
        model = tiny_model.write(Path(folder) / "tiny")
        extension = ("--worker-extension-cls", EXTENSION)
        server = await asyncio.to_thread(VllmServer, model, engine_args=extension, environment=_VARIABLES)
        try:
            return await _experiment(server, Path(folder), requests)
        finally:
            await asyncio.to_thread(server.close)


async def _experiment(server: VllmServer, folder: Path, requests: int) -> dict[str, Any]:
    url, model = server.base_url, server.name
    asked = questions(model, requests, temperature=COLD)
    await run(url, asked)
    control = await run(url, asked)
    again = await run(url, asked)
    warm = await run(url, questions(model, requests, temperature=WARM))

    async def tell(method: str, value: float) -> int:
        body = {"method": method, "args": [str(value)]}
        answer = await asyncio.to_thread(server.call, "POST", "/collective_rpc", body)
        if answer.status != 200:
            raise RuntimeError(f"vLLM's worker was not told: {answer.status} {answer.body!r}")
        return int(answer.json()["results"][0])

    async def pace(seconds: float) -> None:
        await tell("drift_pause", seconds)

    async def update() -> None:
        if not await tell("drift", WARM):
            raise RuntimeError("vLLM's worker changed nothing")

    through, later = await through_samewise(url, folder, questions(model, requests), pace)
    drifted = await run(url, asked, update, pace)
    return {
        "engine": "vllm",
        "update": {"from": COLD, "to": WARM, "after_tokens": AT},
        "undisturbed": compare(again, control, AT),
        "process_wide": compare(drifted, control, AT),
        "samewise": compare(through, control, AT),
        "after_the_update": compare(later, warm, AT),
    }
