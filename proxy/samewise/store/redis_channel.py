"""Word of mouth among all proxies on one Redis, by pub/sub."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from samewise.store import redis_url
from samewise.store.redis_url import Target

_SOON, _LATE = 0.5, 4.0
"""Seconds until a server is tried again: the first time, and at most; twice as long each time."""


class RedisChannel:
    """What is published under each name goes to the one who listens to it; what is said while nobody can hear is lost.

    A server that is away, or doesn't let this user subscribe, is tried again, less and less often; of a Cluster,
    the next node.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ears: dict[str, Callable[[str], None]] = {}
        self._losses: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        """True while everything that is said arrives."""

    def listen(self, name: str, hear: Callable[[str], None], lost: Callable[[], None] = lambda: None) -> None:
        """From `open` on. `lost` is called whenever something may have been missed."""
        self._ears[name] = hear
        self._losses.append(lost)

    def open(self) -> None:
        """Listen from now on."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        delay = _SOON
        for attempt in itertools.count():
            client = redis_url.listener(self._target, attempt)
            with contextlib.suppress(Exception):
                async with client.pubsub() as channel:
                    await channel.subscribe(*self._ears)
                    async for message in channel.listen():
                        if message["type"] == "subscribe":
                            self.hears, delay = message["data"] == len(self._ears), _SOON
                        else:
                            self._ears[message["channel"].decode()](message["data"].decode())
            self.hears = False
            for lost in self._losses:
                lost()
            with contextlib.suppress(Exception):
                await client.aclose()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LATE)
