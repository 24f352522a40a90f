"""Who asks what, and what they got."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from loadtest.chaos.world import LIMIT, TENANTS, World, headers_of
from tests.support.proxy import CHAT, Proxy

PATIENCE = 2 * LIMIT
"""Seconds after which an answer counts as hanging; no limit of the proxy here is longer than half of it."""


@dataclass
class Asked:
    """One question, and all that came of it. Times are of the loop."""

    proxy: int
    tenant: str
    body: dict[str, Any]
    headers: dict[str, str]
    began: float
    ended: float = 0.0
    status: int = 0
    got: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    failure: str = ""
    left: bool = False
    generation: int = 0


def question(chance: random.Random, world: World, now: float) -> Asked:
    """A popular question or one of its own, in some form, of some tenant."""
    popular = chance.random() < 0.8
    prompt = f"popular {int(chance.paretovariate(0.6)) % 200}" if popular else f"own {chance.getrandbits(64)}"
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "seed": chance.choice((1, 1, 2)),
        "max_tokens": 16,
    }
    if chance.random() < 0.4:
        body["stream"] = True
    tenant = chance.choice(TENANTS)
    headers = headers_of(tenant)
    match chance.randrange(20):
        case 0:
            headers["Cache-Control"] = "no-cache"
        case 1:
            headers["Cache-Control"] = "no-store"
        case 2:
            headers["x-samewise-tags"] = "chaos"
    return Asked(chance.randrange(len(world.proxies)), tenant, body, headers, now)


class Peopled(Protocol):
    """Where questions can be asked."""

    @property
    def proxies(self) -> Sequence[Proxy]: ...


async def ask(session: aiohttp.ClientSession, world: Peopled, asked: Asked, leaves: float | None) -> None:
    """Fill in what came. `leaves`: the client goes away after so many seconds."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(leaves if leaves is not None else PATIENCE):
            async with session.post(
                world.proxies[asked.proxy].url + CHAT, data=json.dumps(asked.body), headers=asked.headers
            ) as response:
                asked.status = response.status
                asked.got = {name.lower(): value for name, value in response.headers.items()}
                asked.raw = await response.read()
    except TimeoutError:
        asked.left, asked.failure = leaves is not None, "" if leaves is not None else "hang"
    except aiohttp.ClientPayloadError:
        asked.failure = "cut"
    except (aiohttp.ClientError, OSError) as error:
        asked.failure = f"connection: {type(error).__name__}"
    asked.ended = loop.time()


async def everyone(
    world: World, requests: int, concurrency: int, seed: int, seconds: float | None = None
) -> list[Asked]:
    """So many questions, `concurrency` at a time; none after so many `seconds`."""
    chance = random.Random(f"load {seed}")
    asked: list[Asked] = []
    connector = aiohttp.TCPConnector(limit=0)
    loop = asyncio.get_running_loop()
    end = math.inf if seconds is None else loop.time() + seconds
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:

        async def one() -> None:
            while len(asked) < requests and loop.time() < end:
                this = question(chance, world, loop.time())
                with contextlib.suppress(AssertionError):
                    this.generation = world.proxies[this.proxy].pid
                leaves = chance.uniform(0.001, 0.1) if chance.random() < 0.1 else None
                asked.append(this)
                await ask(session, world, this, leaves)
                if this.failure.startswith("connection"):
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one() for _ in range(concurrency)))
    return asked
