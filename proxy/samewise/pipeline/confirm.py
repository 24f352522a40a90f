"""Asking a member, when an answer of its ended, whether it still is what it was."""

from __future__ import annotations

import asyncio

from samewise.core.fingerprint import ENVIRONMENT_PATH
from samewise.ports import Call, Engine, UpstreamFailed

CONFIRM = 5.0
"""Seconds that a backend may take to say that it is still what it was."""


async def environment_of(engine: Engine, member: str) -> str | None:
    """What the member says that it is; empty where it says nothing in time."""
    call = Call(method="GET", path=ENVIRONMENT_PATH, member=member, purpose="probe")
    try:
        async with asyncio.timeout(CONFIRM):
            exchange = await engine.open(call)
            await exchange.close()
    except (UpstreamFailed, TimeoutError):
        return ""
    return exchange.environment


class Confirmations:
    """A member is asked one question at a time. Whoever comes while it is asked shares the next, which begins later."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[str, asyncio.Task[str | None]] = {}
        self._next: dict[str, asyncio.Task[str | None]] = {}

    async def environment(self, member: str) -> str | None:
        """What the member says that it is, asked after the call; empty where it says nothing in time."""
        asking = self._next.get(member)
        if asking is None:
            asking = asyncio.create_task(self._after(self._under_way.get(member), member))
            self._next[member] = asking
        return await asyncio.shield(asking)

    async def _after(self, before: asyncio.Task[str | None] | None, member: str) -> str | None:
        if before is not None:
            await asyncio.wait([before])
        asking = self._under_way[member] = self._next.pop(member)
        try:
            return await environment_of(self._engine, member)
        finally:
            if self._under_way[member] is asking:
                del self._under_way[member]
