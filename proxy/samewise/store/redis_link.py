"""One way to ask a Redis: bounded in time, behind a circuit breaker, never on a connection that is a reply behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from samewise.ports import Clock, StoreUnavailable
from samewise.store.breaker import Breaker
from samewise.store.events import OnNotice
from samewise.store.redis_errors import REACHABLE, kind_of
from samewise.store.redis_url import Target, connect

_GRACE = 4
"""Turns of the event loop after the time limit: a reply that came while the loop was busy still counts."""

PATIENCE = 2.0
"""Seconds that a command which insists may take, however short the time limit is."""

OVERLOAD = "overload"
"""More commands at once than the connections could carry in time: the server was never asked."""


class _Unsent(Exception):
    """The time was over before there was a connection for the command."""


class RedisLink:
    """Commands to one Redis. `call` takes at most `timeout` seconds and raises StoreUnavailable(kind).

    A command that was sent runs to its end in a task of its own, whoever waits for it or stops
    waiting: a caller that goes away never leaves a reply behind for the next. The client's own time
    limits end that task, and close its connection, where no reply comes. At most
    `target.connections` commands run at once; one that found no room in time says nothing about the
    server, and counts for no circuit. While the circuit is open `call` fails at once, and a probe of
    the link's own asks now and then.
    """

    def __init__(self, target: Target, *, timeout: float, clock: Clock, on_notice: OnNotice) -> None:
        self.target = target
        self.error = ""
        """The last failure, in a word; empty while all is well."""
        self._timeout = timeout
        self._on_notice = on_notice
        self._client, self._others = connect(target, timeout)
        self._breaker = Breaker(clock)
        self._slots = asyncio.Semaphore(target.connections)
        self._running: set[asyncio.Task[Any]] = set()
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def available(self) -> bool:
        return self._breaker.closed

    async def call(self, *words: str | bytes | int, operation: str = "", insist: bool = False) -> Any:
        """The reply of one command. Raises StoreUnavailable; a caller's cancellation never harms others.

        `insist`, for what an operator waits for: it is sent though the circuit is open, and waits longer for
        a connection.
        """
        if self._closed or not (insist or self._breaker.closed):
            raise StoreUnavailable("circuit-open", f"redis at {self.target.place()} is not asked: {self.error}")
        limit = max(self._timeout, PATIENCE) if insist else self._timeout
        return await self._bounded(words, operation or str(words[0]).lower(), limit)

    async def keys(self, pattern: str) -> AsyncIterator[str]:
        """Names that match, from SCAN; each step is bounded by the client's own time limit."""
        try:
            async for name in self._client.scan_iter(match=pattern, count=256):
                yield name.decode()
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self._failed(kind_of(error), "scan") from error

    async def close(self) -> None:
        """Let what runs end (it is bounded), then close the connections."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=self._timeout)
        for client in (self._client, *self._others):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(max(self._timeout, 1.0)):
                    await client.aclose()

    async def _bounded(self, words: tuple[str | bytes | int, ...], operation: str, limit: float) -> Any:
        loop = asyncio.get_running_loop()
        sent = asyncio.Event()
        task = loop.create_task(self._run(words, loop.time() + limit, sent))
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait((task,), timeout=limit)
        for _ in range(_GRACE):
            if task.done():
                break
            await asyncio.sleep(0)
        if not task.done():
            raise self._failed("timeout" if sent.is_set() else OVERLOAD, operation)
        error = task.exception()
        if isinstance(error, _Unsent):
            raise self._failed(OVERLOAD, operation)
        if error is not None:
            raise self._failed(kind_of(error), operation) from error
        self._breaker.success()
        self.error = ""
        return task.result()

    async def _run(self, words: tuple[str | bytes | int, ...], deadline: float, sent: asyncio.Event) -> Any:
        async with self._slots:
            if asyncio.get_running_loop().time() >= deadline:
                raise _Unsent
            sent.set()
            return await self._client.execute_command(*words)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()

    def _failed(self, kind: str, operation: str) -> StoreUnavailable:
        if kind == "noscript":
            return StoreUnavailable(kind)
        if self._breaker.closed:
            self._on_notice("store-error", {"tier": "store", "error": kind, "operation": operation})
        if kind == OVERLOAD:
            return StoreUnavailable(kind, f"redis at {self.target.place()}: too many commands at once")
        self.error = kind
        if kind in REACHABLE:
            self._breaker.success()
            if kind == "readonly":
                self._spawn(self._reconnect())
        elif self._breaker.failure() and not self._closed:
            self._on_notice("store-state", {"tier": "store", "state": "down", "error": kind})
            self._probe = asyncio.get_running_loop().create_task(self._recover())
        return StoreUnavailable(kind, f"redis at {self.target.place()}: {kind}")

    async def _reconnect(self) -> None:
        """A primary that became a replica: what idles on it goes, so that names are resolved anew."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            with contextlib.suppress(Exception):
                await pool.disconnect(inuse_connections=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _recover(self) -> None:
        while not self._breaker.closed:
            await asyncio.sleep(self._breaker.wait())
            if self._breaker.due():
                with contextlib.suppress(StoreUnavailable):
                    await self._bounded(("PING",), "probe", self._timeout)
        self._on_notice("store-state", {"tier": "store", "state": "up", "error": ""})
