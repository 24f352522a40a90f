"""The experiment on the reference engine, in this process, with a real proxy before it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from loadtest.drift import cost
from loadtest.drift.client import AT, COLD, WARM, questions, run
from loadtest.drift.figures import compare
from loadtest.drift.samewise import through_samewise
from loadtest.drift.shared import Paced, ProcessWide
from samewise_backend import model_files, reference, tiny_model
from samewise_backend.language_model import LanguageModel
from samewise_backend.sampler import RequestSampler, SamplerFactory
from samewise_backend.server import application

MODEL = "tiny"


@asynccontextmanager
async def serving(options: reference.Options, sampler: SamplerFactory) -> AsyncIterator[tuple[str, LanguageModel]]:
    """The base URL of a reference engine that chooses tokens with these samplers, and its model."""
    with reference.assembled(options, sampler) as built:
        runner = web.AppRunner(application(built), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", built.engine.model
        finally:
            await runner.cleanup()


def options_of(directory: Path) -> reference.Options:
    """The tiny model on the CPU in float32."""
    model = model_files.resolve(str(directory))
    return reference.parse(model, reference.Place(MODEL), "float32", "cpu", ())


async def experiment(requests: int, pairs: int) -> dict[str, Any]:
    """Figures of an undisturbed repetition, of a process-wide sampler, and of Samewise; and the cost of isolation."""
    with tempfile.TemporaryDirectory(prefix="samewise-drift-") as folder:
        options = options_of(tiny_model.write(Path(folder) / "tiny"))
        asked = questions(MODEL, requests, temperature=COLD)
        left_out = questions(MODEL, requests)
        isolated = Paced(RequestSampler, requests)
        async with serving(options, isolated.sampler) as (url, model):
            control = await run(url, asked)
            again = await run(url, asked)
            warm = await run(url, questions(MODEL, requests, temperature=WARM))
            through, later = await through_samewise(url, Path(folder), left_out, isolated.pace)
            taken = cost.measure(model, pairs) if pairs else None
        process = ProcessWide(COLD)

        async def update() -> None:
            process.temperature = WARM

        shared = Paced(process.sampler, requests)
        async with serving(options, shared.sampler) as (url, _):
            drifted = await run(url, asked, update, shared.pace)
    return {
        "engine": "reference",
        "update": {"from": COLD, "to": WARM, "after_tokens": AT},
        "undisturbed": compare(again, control, AT),
        "process_wide": compare(drifted, control, AT),
        "samewise": compare(through, control, AT),
        "after_the_update": compare(later, warm, AT),
        **({"isolation": taken} if taken else {}),
    }
