"""Whether upstreams have room for questions that nobody waits for."""

from __future__ import annotations

import asyncio

from samewise.core.entry import Entry
from samewise.pipeline.verify.recompute import Failed, Recomputer
from samewise.ports import Call, Clock, Engine, Member, UpstreamFailed

MOST = 64
"""Requests of ours on an upstream above which it counts as full, where it doesn't say how many it runs at once."""
FIRST, LONGEST = 1.0, 60.0
"""Seconds for which an environment is left alone after a failure; they double with each further one."""
_LOOK = 1.0
_METRICS = frozenset({"vllm"})
_WAITING = b"vllm:num_requests_waiting"


class Room:
    """Keeps away from environments that failed, and from upstreams that are full or let requests wait."""

    def __init__(self, engine: Engine, recomputer: Recomputer, clock: Clock) -> None:
        self._engine = engine
        self._recomputer = recomputer
        self._clock = clock
        self._until: dict[str, float] = {}
        self._delay: dict[str, float] = {}
        self._waiting: dict[str, tuple[float, int]] = {}

    def closed_for(self, environment: str) -> float:
        """Seconds for which this environment is left alone."""
        return max(0.0, self._until.get(environment, 0.0) - self._clock.monotonic())

    def failed(self, environment: str, failure: Failed) -> None:
        """A recomputation got no answer: leave its environment alone for a while."""
        if failure.kind not in {"busy", "unreachable", "timeout", "refused", "truncated"}:
            return
        delay = min(LONGEST, max(self._delay.get(environment, FIRST / 2) * 2, failure.retry_after or 0.0))
        self._delay[environment] = delay
        self._until[environment] = max(self._until.get(environment, 0.0), self._clock.monotonic() + delay)

    def worked(self, environment: str) -> None:
        """A recomputation got its answer."""
        self._delay.pop(environment, None)

    async def for_one(self, entry: Entry) -> bool:
        """True where some upstream that can recompute the entry has room now; True too where none can at all."""
        members = self._recomputer.peers(entry)
        if not members:
            return True
        free = [member for member in members if member.running < most(member)]
        return any([await self._idle(member) for member in free])

    async def _idle(self, member: Member) -> bool:
        """False while its own queue has somebody waiting."""
        if member.environment is None or member.environment.engine not in _METRICS:
            return True
        looked, waiting = self._waiting.get(member.url, (float("-inf"), 0))
        if self._clock.monotonic() - looked >= _LOOK:
            self._waiting[member.url] = (self._clock.monotonic(), waiting)
            waiting = await self._ask(member)
            self._waiting[member.url] = (self._clock.monotonic(), waiting)
        return waiting == 0

    async def _ask(self, member: Member) -> int:
        call = Call(method="GET", path="/metrics", member=member.url, purpose="probe")
        try:
            async with asyncio.timeout(_LOOK):
                exchange = await self._engine.open(call)
                try:
                    return waiting_in(await exchange.read()) if exchange.status == 200 else 0
                finally:
                    await exchange.close()
        except (UpstreamFailed, TimeoutError):
            return 0


def waiting_in(metrics: bytes) -> int:
    """Requests that wait, as vLLM's metrics tell it (all engines of one server together)."""
    total = 0.0
    for line in metrics.splitlines():
        if line.startswith(_WAITING) and line[len(_WAITING) : len(_WAITING) + 1] in (b"{", b" "):
            try:
                total += float(line.rsplit(b" ", 1)[1])
            except (IndexError, ValueError):
                continue
    return int(total)


def most(member: Member) -> int:
    """Requests that it runs at once, as its manifest says, else a modest number."""
    manifest = member.environment.manifest if member.environment is not None else {}
    resolved = manifest.get("resolved")
    number = manifest.get("max_num_seqs", resolved.get("max_num_seqs") if isinstance(resolved, dict) else None)
    return number if isinstance(number, int) and number > 0 else MOST
