"""Three proxies, a Redis Cluster of three primaries and three backends: a proxy and a primary die under load."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.chaos.judge import judge
from loadtest.chaos.load import Asked, ask
from loadtest.chaos.world import TENANTS, Backend, Truth, headers_of, key_of
from tests.cases.test_redis_as_run import Cluster
from tests.support.proxy import Proxy, until

SEED = 9
POPULAR = 120
CLIENTS = 10
LOOK = 300
"""Answers to popular questions by which a hit rate is told."""
POINTS = 0.02


class Fleet:
    """All of it, running. Clients choose among the proxies as a load balancer would: `dead` ones are left out."""

    def __init__(self, folder: Path) -> None:
        self.truth = Truth()
        self.backends = [Backend(self.truth, random.Random(SEED * 10 + number)) for number in range(3)]
        self.cluster = Cluster()
        self.proxies: list[Proxy] = []
        self.dead: set[int] = set()
        self._folder = folder

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator[Fleet]:
        fleet = cls(folder)
        try:
            async with contextlib.AsyncExitStack() as stack:
                await fleet.cluster.form()
                for backend in fleet.backends:
                    await stack.enter_async_context(backend.mock)
                urls = [backend.mock.url for backend in fleet.backends]
                for number in range(3):
                    proxy = Proxy(folder / f"proxy-{number}", *urls, settings=fleet._settings())
                    fleet.proxies.append(await stack.enter_async_context(proxy))
                yield fleet
        finally:
            fleet.cluster.close()

    def _settings(self) -> dict[str, Any]:
        nodes = ",".join(f"127.0.0.1:{node.port}" for node in self.cluster.nodes[:3])
        keys = [{"tenant": tenant, "sha256": hashlib.sha256(key_of(tenant).encode()).hexdigest()} for tenant in TENANTS]
        return {
            "auth.keys": keys,
            "store.url": f"redis+cluster://{nodes}",
            "store.memory": 0,
            "store.timeout": "5s",
            "environments.poll": 0.2,
        }


class Load:
    """Questions all the time: most of them popular ones, some streamed, some of a client's own, some past the cache."""

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        self.asked: list[Asked] = []
        self._fleet = fleet
        self._session = session
        self._chance = random.Random(SEED)

    async def client(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            one = self._question()
            self.asked.append(one)
            await ask(self._session, self._fleet, one, None)

    def _question(self) -> Asked:
        chance, now = self._chance, asyncio.get_running_loop().time()
        alive = [number for number in range(3) if number not in self._fleet.dead]
        popular = chance.random() < 0.9
        said = f"popular {chance.randrange(POPULAR)}" if popular else f"own {chance.getrandbits(64)}"
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": said}], "temperature": 0}
        body |= {"seed": 1, "max_tokens": 16, **({"stream": True} if chance.random() < 0.4 else {})}
        headers = headers_of(TENANTS[0])
        if chance.random() < 0.03:
            headers["Cache-Control"] = "no-cache"
        return Asked(chance.choice(alive), TENANTS[0], body, headers, now)

    def hit_rate(self, since: float) -> float:
        """Of the last popular questions that were asked since then and answered; 0 until there are enough."""
        counted = [
            each.got.get("x-samewise-cache") == "HIT"
            for each in self.asked
            if since <= each.began
            and each.status == 200
            and "Cache-Control" not in each.headers
            and each.body["messages"][0]["content"].startswith("popular")
        ][-LOOK:]
        return sum(counted) / LOOK if len(counted) == LOOK else 0.0


@pytest.mark.slow
async def test_a_dead_primary_and_a_dead_proxy_cost_no_answer_and_hits_come_back(tmp_path: Path) -> None:
    clock, stop = asyncio.get_running_loop().time, asyncio.Event()
    headers = {"Content-Type": "application/json"}
    async with (
        Fleet.running(tmp_path) as fleet,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session,
    ):
        load = Load(fleet, session)
        clients = [asyncio.create_task(load.client(stop)) for _ in range(CLIENTS)]
        try:

            async def warm() -> bool:
                return len(load.asked) > 5 * POPULAR and load.hit_rate(0.0) > 0.9

            await until(warm, 120.0, every=0.2)
            before = load.hit_rate(0.0)
            with fleet.truth.breaking("proxy-2", after=0.2):
                fleet.dead.add(2)
                await fleet.proxies[2].kill()
            await asyncio.to_thread(fleet.cluster.nodes[0].kill)

            async def promoted() -> bool:
                return b"role:master" in await asyncio.to_thread(fleet.cluster.nodes[3].command, "INFO", "replication")

            await until(promoted, 120.0, every=0.2)
            since = clock()

            async def as_before() -> bool:
                return load.hit_rate(since) >= before - POINTS

            await until(as_before, 120.0, every=0.2)
        finally:
            stop.set()
            await asyncio.gather(*clients)
        wrong = [(problem, each.body) for each in load.asked if (problem := judge(each, fleet.truth, [])) is not None]
        assert wrong == []
        text = "".join("".join(proxy.log) for proxy in fleet.proxies)
        assert "Traceback" not in text
