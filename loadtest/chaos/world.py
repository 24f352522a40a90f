"""What the chaos happens to: two backends, a Redis behind a shim, two proxies on it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.mock_backend import MockBackend, Received, Script
from tests.support.proxy import Proxy
from tests.support.redis import RedisServer
from tests.support.shim import Shim

ASKER = "x-chaos-asker"
"""A header that travels to the backend and says whose question it is. The proxy does not know it."""
TENANTS = ("a", "b", "c")
LIMIT = 60.0
"""Seconds that a proxy waits for a backend. No fault here makes one fall silent, so that nothing reaches this limit."""


def key_of(tenant: str) -> str:
    return f"chaos-key-of-{tenant}"


def headers_of(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(tenant)}", ASKER: tenant}


@dataclass
class Truth:
    """What really happened: every call to a backend by its number, and when something was broken on purpose."""

    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    windows: list[tuple[str, float, float | None]] = field(default_factory=list)

    def call(self, received: Received, environment: str, at: float) -> int:
        number = len(self.calls) + 1
        body = received.body
        self.calls[number] = {
            "prompt": body["messages"][-1]["content"],
            "seed": body.get("seed"),
            "asker": received.headers.get(ASKER),
            "environment": environment,
            "at": at,
        }
        return number

    def broken(self, what: str, began: float, ended: float) -> bool:
        """True where something of this kind was broken at some time between."""
        return any(
            kind == what and since < ended and (until is None or until > began) for kind, since, until in self.windows
        )

    def outlast(self, spans: Sequence[tuple[float, float]]) -> None:
        """A fault is over when all that was asked in its time has ended: others may have waited for the same call."""
        for at, (kind, since, until) in enumerate(self.windows):
            if until is not None:
                late = max((ended for began, ended in spans if since < ended and began < until), default=until)
                self.windows[at] = (kind, since, max(until, late))

    @contextlib.contextmanager
    def breaking(self, *what: str, after: float) -> Any:
        """A window in which these are broken, and for `after` seconds more what they caused."""
        now = asyncio.get_running_loop().time
        places = [len(self.windows) + at for at in range(len(what))]
        self.windows += [(kind, now(), None) for kind in what]
        try:
            yield
        finally:
            for place in places:
                kind, since, _ = self.windows[place]
                self.windows[place] = (kind, since, now() + after)


class Backend:
    """A mock that signs what it says, and fails as often as `failing` says."""

    def __init__(self, truth: Truth, chance: random.Random) -> None:
        self.mock = MockBackend(manifest={"engine": "chaos"})
        self.failing = 0.0
        self._truth = truth
        self._chance = chance
        self.mock.rules.append(self._rule)

    def _rule(self, received: Received) -> Script:
        environment = str(self.mock.manifest["id"])
        number = self._truth.call(received, environment, asyncio.get_running_loop().time())
        told = json.dumps({**self._truth.calls[number], "call": number, "at": None})
        words = f"{told} " + "w " * self._chance.randrange(0, 12) + "end"
        script = Script(text=lambda body, _: words, delay=self._chance.choice((0.0, 0.0, 0.0, 0.005, 0.05)))
        if self._chance.random() >= self.failing:
            return script
        match self._chance.randrange(5):
            case 0:
                return Script(status=self._chance.choice((429, 500, 503)))
            case 1:
                return Script(status=200, body={"error": {"message": "mock says error", "type": "x"}})
            case 2 if received.body.get("stream"):
                return Script(sse=[b'data: {"choices": [{"index": 0, "delta": {"content": "half'], end="reset")
            case 3 if received.body.get("stream"):
                return Script(sse=[b": nothing\n\n", b"data: [DONE]\n\n"])
            case _:
                script.delay = 0.3
                return script


class World:
    """All of it, running."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.truth = Truth()
        self.backends = [Backend(self.truth, random.Random(seed * 10 + number)) for number in range(2)]
        self.redis = RedisServer()
        self.proxies: list[Proxy] = []
        self.shim: Shim
        self._folder = folder

    def settings(self) -> Mapping[str, Any]:
        keys = [{"tenant": tenant, "sha256": hashlib.sha256(key_of(tenant).encode()).hexdigest()} for tenant in TENANTS]
        return {
            "auth.keys": keys,
            "store.url": f"redis://127.0.0.1:{self.shim.port}",
            "store.memory": "8MiB",
            "store.timeout": "500ms",
            "store.secret": "chaos",
            "timeouts.connect": LIMIT,
            "timeouts.first_byte": LIMIT,
            "timeouts.idle": LIMIT,
            "environments.poll": 0.2,
        }

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path, seed: int) -> AsyncIterator[World]:
        """Everything, up and well."""
        world = cls(folder, seed)
        try:
            async with contextlib.AsyncExitStack() as stack:
                world.shim = await stack.enter_async_context(Shim.before(world.redis.port, seed=seed))
                for backend in world.backends:
                    await stack.enter_async_context(backend.mock)
                urls = [backend.mock.url for backend in world.backends]
                for number in range(2):
                    proxy = Proxy(folder / f"proxy-{number}", *urls, settings=world.settings())
                    await stack.enter_async_context(proxy)
                    world.proxies.append(proxy)
                yield world
        finally:
            world.redis.close()
