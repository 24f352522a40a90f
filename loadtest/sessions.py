"""Agents that repeat most of their steps, with Samewise and without: hit rate, latency, and whether answers hold.

`python -m loadtest sessions [--engine reference|vllm] [--steps N] [--json FILE] [--page FILE]...`
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import aiohttp

from loadtest import page
from samewise_backend import tiny_model
from tests.support.proxy import Proxy, until
from tests.support.vllm import BackendServer, VllmServer

AGENTS, REPEATED, COMMON = 6, 0.8, 3
"""Agents; the share of its own steps that each repeats; how many agents come by a new step, about."""
TOKENS = 16
ROUNDS = 10
"""Times that each step is asked again afterwards, and its answer recomputed."""
COMMAND = "python -m loadtest sessions"
_LIMIT = 1800.0
_SYSTEM = "You plan one step at a time and call the tools that you are given. " * 12


def sessions(steps: int, seed: int) -> list[list[int]]:
    """For each agent the numbers of its steps: four of five are steps of its own again, the others new to it, though
    not always to its colleagues."""
    new = round(steps * (1 - REPEATED))
    pool = range(new * AGENTS // COMMON)
    walks = []
    for agent in range(AGENTS):
        source = random.Random(f"{seed} {agent}")
        fresh = source.sample(pool, new)
        walk = [fresh[0]]
        turns = [True] * (new - 1) + [False] * (steps - new)
        source.shuffle(turns)
        known = 1
        for turn in turns:
            known += turn
            walk.append(fresh[known - 1] if turn else source.choice(fresh[:known]))
        walks.append(walk)
    return walks


def body(model: str, step: int) -> dict[str, Any]:
    """What an agent asks at a step: its instructions, and what the tool said last."""
    said = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": f"step {step}: the tool says {random.Random(step).randbytes(40).hex()}"},
    ]
    return {"model": model, "messages": said, "temperature": 0, "seed": 7, "max_tokens": TOKENS}


async def walk(url: str, model: str, walks: Sequence[Sequence[int]]) -> tuple[list[float], Counter[str]]:
    """All agents at once, each one step after the other: seconds of each step, and outcomes. Raises RuntimeError."""
    times: list[float] = []
    outcomes: Counter[str] = Counter()

    async def agent(session: aiohttp.ClientSession, steps: Sequence[int]) -> None:
        for step in steps:
            began = time.perf_counter()
            async with session.post(f"{url}/chat/completions", json=body(model, step)) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")
                outcomes[answer.headers.get("x-samewise-cache", "")] += 1
            times.append(time.perf_counter() - began)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT)) as session:
        await asyncio.gather(*(agent(session, steps) for steps in walks))
    return times, outcomes


async def measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Without and with, on the same server; hits are recomputed in the background, and each step again afterwards."""
    walks = sessions(given.steps, given.seed)
    made = VllmServer if given.engine == "vllm" else BackendServer
    server = await asyncio.to_thread(
        made, tiny_model.write(folder / "model", tiny_model.Shape(sharpness=2.5)), options=("--dtype", "float32")
    )
    try:
        await walk(server.base_url, server.name, [each[:2] for each in walks])
        without, _ = await walk(server.base_url, server.name, walks)
        settings = {"verify.rate": 1.0, "verify.concurrency": 1, "verify.keep": 10_000, "verify.queue": 10_000}
        async with Proxy(folder / "proxy", server.base_url, settings=settings) as proxy:
            times, outcomes = await walk(f"{proxy.url}/v1", server.name, walks)

            for step in sorted({step for steps in walks for step in steps}) * ROUNDS:
                await _recomputed(proxy, body(server.name, step))
            status = await proxy.admin("GET", "/status")
    finally:
        await asyncio.to_thread(server.close)
    count = sum(outcomes.values())
    return {
        "engine": given.engine,
        "requests": count,
        "agents": AGENTS,
        "different": len({step for steps in walks for step in steps}),
        "outcomes": dict(outcomes),
        "hit_rate": (outcomes["HIT"] + outcomes["COALESCED"]) / count,
        "without": _times(without),
        "with": _times(times),
        "consistency": next(iter(status["consistency"].values())),
    }


async def _recomputed(proxy: Proxy, asked: dict[str, Any]) -> None:
    """Ask what is kept, and wait for a recomputation that followed."""
    before = await proxy.metric("samewise_verifications_total")
    await proxy.post(asked)

    async def more() -> bool:
        return await proxy.metric("samewise_verifications_total") > before

    await until(more, _LIMIT, 0.05)


def _times(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"mean": mean(ordered), "median": median(ordered), "p95": ordered[len(ordered) * 95 // 100]}


def table(figures: dict[str, Any]) -> str:
    """Without, with, and what it comes to."""
    rows = ["| | without | with Samewise | |", "|---|---|---|---|"]
    rows.append(f"| answered from the cache, of {figures['requests']:,} steps | | {figures['hit_rate']:.1%} | |")
    for name, label in (("mean", "a step takes, mean"), ("median", "median"), ("p95", "95th percentile")):
        before, after = (figures[side][name] * 1e3 for side in ("without", "with"))
        change = f"{1 - after / before:.0%} less" if after <= before else f"{after / before - 1:.0%} more"
        rows.append(f"| {label} | {before:,.0f} ms | {after:,.1f} ms | {change} |")
    level = figures["consistency"]
    shown = f"{level['ratio']:.3f} ({level['low']:.3f} to {level['high']:.3f})"
    rows.append(f"| consistency in float32, of {level['checked']:,} hits recomputed (95 %) | | {shown} | |")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Run it, print the table; exit code 1 where a figure isn't what it should be."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--engine", choices=["reference", "vllm"], default="reference")
    parser.add_argument("--steps", type=int, default=50, help="of each agent")
    parser.add_argument("--seed", type=int, default=0)
    page.options(parser)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="samewise-sessions-") as folder:
        figures = asyncio.run(measured(given, Path(folder)))
    page.publish(given, COMMAND, figures, table(figures))
    faster = 1 - figures["with"]["mean"] / figures["without"]["mean"]
    return int(figures["hit_rate"] <= 0.8 or faster < 0.3 or figures["consistency"]["ratio"] < 1.0)
