"""All upstreams as one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from samewise.core.address import base_url
from samewise.ports import Call, Exchange, Member, UpstreamFailed, Warmth
from samewise.upstream.hedge import first_of
from samewise.upstream.member import Upstream
from samewise.upstream.names import Names
from samewise.upstream.prefixes import DEFAULT_BLOCK, Seen, blocks
from samewise.upstream.strategy import Strategy

_START = 1.0
"""Seconds that `start` waits for upstreams to say what they are."""


class _Tries:
    """`tried` are not asked (again); `lost` is the one that died over the call, or may, beside another."""

    def __init__(self, tried: list[Upstream], lost: str) -> None:
        self.tried, self.lost = tried, lost


class Pool:
    """Implements `ports.Engine`, `Roster` and `Prefixes`. Runs on one event loop; `start` it there, and `close` it.

    A request that can't have reached an upstream (no connection) is tried on the next eligible one, until
    none is left. One that may have run is not repeated, but for a question whose answer is the same whoever
    gives it: where an upstream died over it, one other is asked, and no third (`Call.lost`, `Exchange.lost`).
    """

    def __init__(
        self,
        members: Iterable[Upstream],
        strategy: Strategy,
        make: Callable[[str], Upstream],
        *,
        names: Names,
        hedge: float = 0.0,
    ):
        """`make` builds what `add` adds; `hedge`: seconds after which another is asked too, 0: never.

        Raises ValueError where two members have one URL.
        """
        self._members: dict[str, Upstream] = {}
        for member in members:
            if member.url in self._members:
                raise ValueError(f"the upstream {member.url} is listed twice")
            self._members[member.url] = member
        self._strategy = strategy
        self._make = make
        self._names = names
        self._hedge = hedge
        self._leaving: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to watch; returns when every upstream is known or known to be away, after 1 s at most."""
        for member in self._members.values():
            member.start()
        await asyncio.gather(self._wait(self._members.values()), self._names.start(self.add, self.remove))

    async def close(self) -> None:
        """Watch no more and end every connection, those of running requests too."""
        await self._names.close()
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.gather(*(member.stop() for member in self._members.values()))

    async def add(self, url: str) -> Member:
        """One more upstream, or an old one that drains no more. Raises ValueError where its URL isn't one."""
        url = base_url(url)
        member = self._members.get(url)
        if member is None:
            member = self._members[url] = self._make(url)
            member.start()
            await self._wait([member])
        else:
            member.drain(False)
        return member.member()

    def drain(self, url: str) -> bool:
        """Send it nothing new. False where there is no such upstream."""
        member = self._members.get(base_url(url))
        if member is not None:
            member.drain(True)
        return member is not None

    def remove(self, url: str) -> bool:
        """Forget it; what runs on it goes on to its end. False where there is no such upstream."""
        member = self._members.pop(base_url(url), None)
        if member is None:
            return False
        member.drain(True)
        if self._strategy.seen is not None:
            self._strategy.seen.forget(member.url)
        task = asyncio.create_task(self._leave(member))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return True

    # --- ports.Engine ---------------------------------------------------------------------------------

    async def open(self, call: Call) -> Exchange:
        """Send and wait for the head of the answer. Raises UpstreamFailed."""
        tries = _Tries([member for member in self._members.values() if member.url == call.lost], call.lost)
        if self._hedge > 0 and call.hedge and not call.lost and len(self._eligible(call, tries.tried)) > 1:
            return await first_of(self._open(call, tries), lambda: self._second(call, tries), self._hedge)
        return await self._open(call, tries)

    async def _second(self, call: Call, tries: _Tries) -> Exchange:
        """Beside the first, which counts from then on as one that may be lost: no third is asked."""
        if tries.lost:
            raise UpstreamFailed("none-eligible", "another was asked already")
        tries.lost = tries.tried[-1].url
        return await self._open(call, tries)

    async def _open(self, call: Call, tries: _Tries) -> Exchange:
        """On one after the other."""
        while True:
            candidates = self._eligible(call, tries.tried)
            if not candidates:
                raise UpstreamFailed("none-eligible", self._nobody(call))
            member = self._choose(candidates, call)
            tries.tried.append(member)
            try:
                exchange = await member.open(call)
            except UpstreamFailed as failure:
                repeats = call.hedge and not tries.lost if failure.kind == "cut" else failure.kind == "unreachable"
                if not repeats or not isinstance(call.body, bytes) or not self._eligible(call, tries.tried):
                    raise
                tries.lost = tries.lost or (member.url if failure.sent else "")
            else:
                exchange.lost = tries.lost
                return exchange

    def _choose(self, candidates: Sequence[Upstream], call: Call) -> Upstream:
        """Where there is no choice, what the one sees is recorded all the same, while it is asked."""
        if len(candidates) > 1:
            return self._strategy.choose(candidates, call)
        [one] = candidates
        if call.route is not None and self._strategy.seen is not None:
            asyncio.get_running_loop().call_soon(self._note, self._strategy.seen, one, call.route)
        return one

    @staticmethod
    def _note(seen: Seen, member: Upstream, route: Callable[[], bytes]) -> None:
        seen.note(member.url, blocks(route(), member.block_tokens or DEFAULT_BLOCK))

    def members(self) -> Sequence[Member]:
        """All upstreams, from memory: asks nobody."""
        return [member.member() for member in self._members.values()]

    async def refresh(self, url: str | None = None) -> None:
        """Look again now at what the upstream (or all) is, its answers included. An unknown URL is ignored."""
        members = self._members.values() if url is None else [self._members[base_url(url)]] if url in self else []
        await asyncio.gather(*(member.look(thorough=True) for member in members))

    def warmth(self, call: Call) -> Warmth | None:
        """The prefix of the call's prompt, and how much of it each upstream that may answer has seen."""
        if call.route is None:
            return None
        members = self._fitting(call)
        told = members[0].block_tokens if members else 0
        chain, seen = blocks(call.route(), told or DEFAULT_BLOCK), self._strategy.seen
        return Warmth(
            blocks=len(chain),
            block_tokens=told or DEFAULT_BLOCK,
            assumed=not told,
            digest=f"{chain[-1]:016x}",
            common=0 if seen is None else seen.common(chain),
            warm=None if seen is None else {member.url: seen.depth(member.url, chain) for member in members},
        )

    def __contains__(self, url: str) -> bool:
        try:
            return base_url(url) in self._members
        except ValueError:
            return False

    # --- inside ---------------------------------------------------------------------------------------

    def _eligible(self, call: Call, tried: Sequence[Upstream]) -> list[Upstream]:
        """Who may be asked: the healthy ones, or, where no fitting one is healthy, the others all the same."""
        fitting = [member for member in self._fitting(call) if member not in tried]
        return [member for member in fitting if member.health.good()] or fitting

    def _fitting(self, call: Call) -> list[Upstream]:
        if call.member is not None:
            return [member for member in self._members.values() if member.url == call.member.rstrip("/")]
        members = [
            member
            for member in self._members.values()
            if not member.draining
            and (call.environment is None or (member.environment and member.environment.id == call.environment))
        ]
        if call.model is None:
            return members
        if not any(call.model in member.models for member in self._members.values()):
            return members
        return [member for member in members if call.model in member.models or not member.models]

    def _nobody(self, call: Call) -> str:
        if not self._members:
            return "no upstream is configured; name one in [[upstreams]] or with --upstream"
        if call.member is not None:
            return f"{call.member} is not among the upstreams"
        wanted = [f"model {call.model}"] if call.model is not None else []
        wanted += [f"environment {call.environment}"] if call.environment is not None else []
        return f"no upstream offers {' in '.join(wanted) or 'anything: all are draining'}"

    async def _wait(self, members: Iterable[Upstream]) -> None:
        waiting = [asyncio.ensure_future(member.known.wait()) for member in members]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=_START)
            for task in late:
                task.cancel()

    async def _leave(self, member: Upstream) -> None:
        try:
            await member.idle.wait()
        finally:
            await member.stop()
