"""One seed, from a world that is well to a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.chaos import faults, load
from loadtest.chaos.judge import judge
from loadtest.chaos.world import TENANTS, World, headers_of

SHOWN = 20
HEALS = 60.0
"""Seconds within which both proxies have to give hits again."""
PERSISTENCE = 50
"""How often an operator tries to have something done."""


async def run(seed: int, *, requests: int, concurrency: int, seconds: float | None = None) -> dict[str, Any]:
    """Figures of one run of so many requests, or `seconds`; `wrong` says what was, in words, at most twenty of them."""
    loop = asyncio.get_running_loop()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="samewise-chaos-") as folder:
        async with World.running(Path(folder), seed) as world:
            broken: dict[str, int] = {}
            ends: list[dict[str, Any]] = []
            stop = asyncio.Event()
            began = loop.time()
            breaking = asyncio.create_task(faults.go_on(world, broken, stop))
            operating = asyncio.create_task(_operate(world, ends))
            asked = await load.everyone(world, requests, concurrency, seed, seconds)
            took = loop.time() - began
            stop.set()
            operating.cancel()
            await breaking
            with contextlib.suppress(asyncio.CancelledError):
                await operating
            world.truth.outlast([(each.began, each.ended) for each in asked])
            wrong = [(each, problem) for each in asked if (problem := judge(each, world.truth, ends)) is not None]
            healed = await _healed(world)
            crashes = [crash for proxy in world.proxies for crash in _crashes(proxy.log)]
    problems = [f"{problem} | {_shown(each)}" for each, problem in wrong]
    return {
        "seed": seed,
        "requests": len(asked),
        "seconds": round(took, 1),
        "outcomes": dict(Counter(each.got.get("x-samewise-cache", each.failure or "left") for each in asked)),
        "statuses": {str(status): count for status, count in Counter(each.status for each in asked).items()},
        "calls": len(world.truth.calls),
        "invalidations": len(ends),
        "faults": broken,
        "wrong": [
            *problems[:SHOWN],
            *([] if healed else ["hits did not come back"]),
            *crashes[:SHOWN],
        ],
        "problems": len(problems),
    }


def _crashes(log: list[str]) -> list[str]:
    """The last line of each traceback."""
    text = "".join(log)
    return [part.partition("\n20")[0][-1500:] for part in text.split("Traceback (most recent call last):")[1:]]


def _shown(each: load.Asked) -> str:
    what = f"{each.tenant} {each.body['messages'][-1]['content']} stream={each.body.get('stream', False)}"
    return f"{what} {each.status} {each.got.get('x-samewise-cache')} {each.got.get('x-samewise-reason')}"


async def _operate(world: World, ends: list[dict[str, Any]]) -> None:
    """An operator, who ends things now and then."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(world.chance.uniform(0.3, 1.5))
        number = world.chance.randrange(2)
        scope, value = world.chance.choice(
            (("all", ""), ("model", "m"), ("tenant", world.chance.choice(TENANTS)), ("tag", "chaos"))
        )
        for _ in range(PERSISTENCE):
            proxy, asked = world.proxies[number], loop.time()
            with contextlib.suppress(AssertionError, aiohttp.ClientError, OSError, TimeoutError):
                pid = proxy.pid
                await proxy.admin("POST", "/invalidate", {"scope": scope, "value": value})
                end = {"proxy": number, "generation": pid, "scope": scope, "value": value, "asked": asked}
                ends.append({**end, "at": loop.time()})
                break
            await asyncio.sleep(0.1)


async def _healed(world: World) -> bool:
    """True where both proxies give hits again in time."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
        for number in range(2):
            end = loop.time() + HEALS
            while True:
                body = {"model": "m", "messages": [{"role": "user", "content": "healed"}], "temperature": 0, "seed": 1}
                asked = load.Asked(number, "a", body, headers_of("a"), loop.time())
                await load.ask(session, world, asked, None)
                if asked.got.get("x-samewise-cache") == "HIT":
                    break
                if loop.time() > end:
                    return False
                await asyncio.sleep(0.05)
    return True
