"""Leases of all proxies on one Redis: a token set where there is none, and word of its end by pub/sub.

Every process that holds leases says so on the channel a few times a second. One that fell silent is
dead to those who wait for it, and the first of them takes its lease over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable

from samewise.ports import StoreUnavailable, Turn
from samewise.store.redis import prefix
from samewise.store.redis_channel import RedisChannel
from samewise.store.redis_link import RedisLink
from samewise.store.redis_script import Script

BEAT = 0.2
"""Seconds between two signs of life of a process that holds leases."""
SILENCE = 0.8
"""Seconds without one after which it is dead."""
DEAF = 3
"""Times that a process which was itself too busy to listen gives others another while before it calls them dead."""
LONGEST = 3_600_000
"""Milliseconds after which a lease ends by itself."""

_TAKE = Script("""
if redis.call('EXISTS', KEYS[2]) == 1 then return 'landed' end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 'mine' end
return redis.call('GET', KEYS[1])
""")
_TAKE_OVER = Script("""
if redis.call('EXISTS', KEYS[2]) == 1 then return 'landed' end
if redis.call('GET', KEYS[1]) ~= ARGV[3] then return 'gone' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'mine'
""")
_TURNS: dict[bytes, Turn] = {b"landed": "landed", b"mine": "mine"}
_RELEASE = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', KEYS[1]) end
return redis.call('PUBLISH', ARGV[2], ARGV[3])
""")


class RedisLeases:
    """`written` returns when what was put under a key is on the server, or will not be. Closes its link and channel."""

    def __init__(
        self,
        link: RedisLink,
        channel: RedisChannel,
        *,
        namespace: str,
        written: Callable[[str], Awaitable[None]],
    ) -> None:
        self._link = link
        self._channel = channel
        self._prefix = prefix(namespace)
        self._written = written
        self._process = secrets.token_hex(8)
        self._held: dict[str, str] = {}
        self._ends: dict[str, set[asyncio.Future[bool]]] = {}
        self._heard: dict[str, float] = {}
        self._count = 0
        self._beating: asyncio.Task[None] | None = None
        self._name = f"{self._prefix}:leases"
        channel.listen(self._name, self._hear, self._lost)

    def open(self) -> None:
        """Listen from now on. Until the server can be heard, every turn is free."""
        self._channel.open()
        self._beating = asyncio.create_task(self._beat())

    async def turn(self, key: str, since: int) -> Turn:
        if not self._channel.hears:
            return "free"
        lease, entry = self._lease(key, since), self._entry(key)
        self._count += 1
        token = f"{self._process}:{self._count}"
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(lease, set()).add(end)
        try:
            reply = await _TAKE.run(self._link, (lease, entry), (token, LONGEST), operation="lease")
            turn = _TURNS.get(reply) or await self._follow(lease, entry, token, reply, end)
            if turn == "mine":
                self._held[lease] = token
            return turn
        except StoreUnavailable:
            return "free"
        finally:
            ends = self._ends[lease]
            ends.discard(end)
            if not ends:
                del self._ends[lease]

    async def release(self, key: str, since: int, *, stored: bool) -> None:
        lease = self._lease(key, since)
        if stored:
            await self._written(key)
        token = self._held.pop(lease, None)
        if token is None:
            return
        with contextlib.suppress(StoreUnavailable):
            words = (token, self._name, f"{int(stored)}{lease}")
            await _RELEASE.run(self._link, (lease,), words, operation="lease")

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._channel.close()
        await self._link.close()

    async def _follow(self, lease: str, entry: str, token: str, holder: bytes, end: asyncio.Future[bool]) -> Turn:
        """What the holder said when it was done; where it fell silent, its entry or its lease.

        A process shows that it lives only while it holds leases: silence before this one tells nothing.
        """
        deaf, began = DEAF, time.monotonic()
        while True:
            process = holder.decode().partition(":")[0]
            left = self._heard_last(process, began) + SILENCE - time.monotonic()
            listened = left > 0 and self._channel.hears
            if listened:
                await asyncio.wait((end,), timeout=left)
            if end.done():
                return "landed" if end.result() else "free"
            if not self._channel.hears:
                raise StoreUnavailable("refused")
            silence = time.monotonic() - self._heard_last(process, began)
            if listened and silence > SILENCE + BEAT and deaf:
                deaf, began = deaf - 1, time.monotonic()
                continue
            if silence < SILENCE:
                continue
            words = (token, LONGEST, holder)
            turn = _TURNS.get(await _TAKE_OVER.run(self._link, (lease, entry), words, operation="lease"))
            if turn is not None:
                return turn
            found = await self._link.call("GET", lease, operation="lease")
            if not isinstance(found, bytes):
                raise StoreUnavailable("released")
            holder, began = found, time.monotonic()

    def _heard_last(self, process: str, since: float) -> float:
        return max(self._heard.get(process, since), since)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            if self._held:
                with contextlib.suppress(StoreUnavailable):
                    await self._link.call("PUBLISH", self._name, f"h{self._process}", operation="lease")

    def _lost(self) -> None:
        """What was said meanwhile is not known: nobody waits for it."""
        for ends in self._ends.values():
            for end in ends:
                if not end.done():
                    end.set_result(False)

    def _hear(self, said: str) -> None:
        if said[0] == "h":
            self._heard[said[1:]] = time.monotonic()
            if len(self._heard) > 4096:
                oldest = min(self._heard, key=self._heard.__getitem__)
                del self._heard[oldest]
            return
        for end in self._ends.get(said[1:], ()):
            if not end.done():
                end.set_result(said[0] == "1")

    def _lease(self, key: str, since: int) -> str:
        return f"{self._prefix}:l:{{{key}}}:{since}"

    def _entry(self, key: str) -> str:
        return f"{self._prefix}:e:{{{key}}}"
