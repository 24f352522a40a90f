"""Real vLLM in two precisions, answers recorded at 32 at once and recomputed: what differs, and by how many nats?

`python -m loadtest consistency [--entries N] [--rounds N] [--dtype D]... [--json FILE] [--page FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest import page
from samewise_backend import tiny_model
from tests.support.proxy import Proxy, until
from tests.support.vllm import VllmServer

CONCURRENCY = 32
TOKENS = 48
SHAPE = tiny_model.Shape(hidden=512, intermediate=1376, sharpness=2.5)
"""Large enough for bfloat16 to take other kernels in a batch than alone, and with close calls."""
COMMAND = "python -m loadtest consistency"
_VERDICTS = ("match", "near_tie", "divergent", "inconclusive")
_PROMPTS = ("The old clock", "My sister repairs", "Every student counts", "In the morning by the sea", "A small bird")
_LIMIT = 900.0


def main(argv: list[str]) -> int:
    """Run it, print the table; exit code 1 where float32 diverged, or bfloat16 did not."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--entries", type=int, default=250, help="different requests, with a seed each")
    parser.add_argument("--rounds", type=int, default=8, help="times that each is verified in float32")
    parser.add_argument("--dtype", action="append", help="float32 and bfloat16 where left out")
    page.options(parser)
    given = parser.parse_args(argv)
    figures = [asyncio.run(experiment(dtype, given)) for dtype in given.dtype or ("float32", "bfloat16")]
    page.publish(given, COMMAND, figures, table(figures))
    expected = {"float32": lambda found: not found, "bfloat16": bool}
    differing = {each["dtype"]: each["near_tie"] + each["divergent"] + each["flaky"] for each in figures}
    return int(not all(expected.get(dtype, lambda _: True)(count) for dtype, count in differing.items()))


async def experiment(dtype: str, given: argparse.Namespace) -> dict[str, Any]:
    """Figures of one precision. Raises RuntimeError where there is no vLLM or it doesn't start."""
    rounds = given.rounds if dtype == "float32" else 1
    with tempfile.TemporaryDirectory(prefix="samewise-consistency-") as folder:
        model = tiny_model.write(Path(folder) / "tiny", SHAPE)
        server = await asyncio.to_thread(
            VllmServer, model, options=("--dtype", dtype), engine_args=("--enable-prompt-tokens-details",)
        )
        try:
            settings = {"verify.rate": 1.0, "verify.concurrency": 1, "verify.keep": 10_000, "verify.queue": 10_000}
            async with Proxy(Path(folder) / "proxy", server.base_url, settings=settings) as proxy:
                return await _measure(proxy, dtype, server.name, given.entries, rounds)
        finally:
            await asyncio.to_thread(server.close)


async def _measure(proxy: Proxy, dtype: str, model: str, entries: int, rounds: int) -> dict[str, Any]:
    asked = questions(model, entries)
    outcomes = await _ask_all(proxy, asked)
    if outcomes != {"MISS": entries}:
        raise RuntimeError(f"the answers were not recorded: {outcomes}")
    for done in range(1, rounds + 1):
        await _ask_all(proxy, asked)
        await _verified(proxy, done * entries)
    counts = {
        verdict: int(await proxy.metric("samewise_verifications_total", verdict=verdict)) for verdict in _VERDICTS
    }
    items = (await proxy.admin("GET", "/divergences?limit=10000"))["items"]
    flaky = sum(item["verdict"] == "flaky" for item in items)
    status = await proxy.admin("GET", "/status")
    shown = [await proxy.admin("GET", f"/divergences/{item['id']}") for item in items]
    return {
        "dtype": dtype,
        "entries": entries,
        "concurrency": CONCURRENCY,
        "verifications": sum(counts.values()),
        **counts,
        "inconclusive": counts["inconclusive"] - flaky,
        "flaky": flaky,
        "layers": dict(Counter(item["layer"] for item in items)),
        "gaps": sorted(item["gap"] for item in items if item["gap"] is not None),
        "consistency": next(iter(status["consistency"].values()), {}),
        "examples": [_example(each) for each in shown if each["verdict"] in {"near_tie", "divergent"}][:6],
        "generated": int(await proxy.metric("samewise_tokens_total", kind="generated")),
        "verified": int(await proxy.metric("samewise_tokens_total", kind="verified")),
    }


def questions(model: str, entries: int) -> list[dict[str, Any]]:
    """Requests that differ in prompt and seed: one half at temperature 0.7, the other at 0."""
    return [
        {
            "model": model,
            "prompt": f"{_PROMPTS[at % len(_PROMPTS)]} {at}",
            "seed": 1000 + at,
            "temperature": 0.7 if at % 2 else 0.0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for at in range(entries)
    ]


async def _ask_all(proxy: Proxy, asked: Sequence[dict[str, Any]]) -> dict[str, int]:
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(body: dict[str, Any]) -> str:
        async with slots:
            answer = await proxy.post(body, path="/v1/completions")
            return str(answer.cache if answer.status == 200 else answer.body[:200])

    return dict(Counter(await asyncio.gather(*(one(body) for body in asked))))


async def _verified(proxy: Proxy, count: int) -> None:
    async def done() -> bool:
        return await proxy.metric("samewise_verifications_total") >= count

    await until(done, _LIMIT, 0.5)


def _example(told: dict[str, Any]) -> dict[str, Any]:
    """What can be checked by hand: the two tokens where the answers part, and what either run thought of them."""
    names = ("verdict", "position", "gap", "layer", "candidates")
    return {
        **{name: told[name] for name in names},
        "cached": {name: told["cached"].get(name) for name in ("text", "concurrency", "cached_tokens")},
        "recomputed": {name: told["recomputed"].get(name) for name in ("text", "concurrency", "cached_tokens")},
    }


def table(figures: Sequence[dict[str, Any]]) -> str:
    """One row a precision."""
    rows = [
        "| precision | verifications | match | near tie | flaky | divergent | inconclusive | consistency (95 %) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in figures:
        level = each["consistency"]
        interval = f"{level['ratio']:.4f} ({level['low']:.4f} to {level['high']:.4f})" if level.get("checked") else "-"
        names = ("verifications", "match", "near_tie", "flaky", "divergent", "inconclusive")
        rows.append(f"| {each['dtype']} | " + " | ".join(f"{each[name]:,}" for name in names) + f" | {interval} |")
    return "\n".join(rows)
