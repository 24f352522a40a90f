"""What is done when an environment falls below its floor, and when it is well again: told once, on every proxy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from samewise.core.entry import Entry
from samewise.pipeline import fleet
from samewise.pipeline.control import Control
from samewise.pipeline.verify import withheld
from samewise.pipeline.verify.book import Book
from samewise.pipeline.verify.consistency import Consistency, Level, Share, State, figures
from samewise.pipeline.verify.judge import Finding
from samewise.ports import Clock, ControlEvent, Engine, Notice, Observer, StoreUnavailable

_log = logging.getLogger("samewise.verify")
EVIDENCE = 10
"""Divergences that a hook is shown."""

OnFloor = Literal["alert", "pause", "drain"]
Hook = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Tells somebody outside; may raise anything, and take as long as it bounds itself."""


class Episodes:
    """Follows the consistency of environments. An episode begins and ends in the journal, so that every proxy on the
    store sees the same, and only the one whose event began it tells the hook."""

    def __init__(
        self,
        *,
        level: Level,
        on_floor: OnFloor,
        control: Control,
        engine: Engine,
        book: Book,
        observer: Observer,
        clock: Clock,
        who: str,
        hook: Hook | None = None,
    ) -> None:
        self._level = level
        self._on_floor = on_floor
        self._control = control
        self._engine = engine
        self._book = book
        self._observer = observer
        self._clock = clock
        self._who = who
        self._hook = hook
        self._consistency = Consistency(level)
        self._telling: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    async def saw(self, entry: Entry, finding: Finding) -> None:
        """One more verification."""
        if finding.outcome not in {"match", "near_tie", "divergent"} or finding.shown is None:
            return
        environment = entry.environment
        member = finding.odd[0] if finding.odd else finding.shown.member
        agreed = finding.outcome != "divergent"
        share = self._consistency.observe(environment, member, self._clock.now(), agreed=agreed, blamed=finding.odd)
        self._measure(environment, share)
        with contextlib.suppress(StoreUnavailable):
            async with self._one_at_a_time:
                await self._follow(environment, entry.model)

    def describe(self, others: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """The consistency of every environment that something is known of, as JSON values.

        `others`: counts of all workers together, by environment, where this is one of several.
        """
        names = dict.fromkeys([*self._consistency.environments(), *self._control.withheld.episodes(), *(others or {})])
        told = {}
        for name in names:
            shown = self._consistency.describe(name, self._state(name))
            counts = (others or {}).get(name)
            if counts is not None:
                share = Share.counted(int(counts.get("agreed", 0)), int(counts.get("checked", 0)))
                shown |= figures(share, self._level, self._state(name))
            episode = self._control.withheld.episode(name)
            if episode is not None:
                shown |= {"since": episode.at, "paused": episode.paused}
            told[name] = shown
        return told

    async def close(self) -> None:
        """Give up what is being told."""
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)

    def _state(self, environment: str) -> State:
        return "degraded" if self._control.withheld.episode(environment) is not None else "ok"

    async def _follow(self, environment: str, model: str) -> None:
        if self._control.withheld.episode(environment) is None:
            if self._consistency.fell(environment):
                await self._begin(environment, model)
        elif self._consistency.rose(environment):
            await self._end(environment, model)
        if self._on_floor == "drain" and self._control.withheld.episode(environment) is not None:
            await self._drain(environment)

    async def _begin(self, environment: str, model: str) -> None:
        evidence = self._consistency.describe(environment, "degraded")
        paused = self._on_floor == "pause"
        event = await self._record(withheld.DEGRADED, environment, {"paused": paused, "evidence": evidence})
        episode = self._control.withheld.episode(environment)
        if episode is not None and episode.number == event.number:
            await self._tell("degraded", environment, model, evidence)

    async def _end(self, environment: str, model: str) -> None:
        evidence = self._consistency.describe(environment, "ok")
        await self._record(withheld.RECOVERED, environment, {"evidence": evidence})
        self._consistency.restart(environment)
        self._measure(environment, Share.counted(0, 0))
        await self._tell("recovered", environment, model, evidence)

    async def _drain(self, environment: str) -> None:
        """Nothing new goes to the one that the others contradict, as long as two of them are left."""
        window = self._consistency.window(environment)
        odd = window.odd()
        members = [
            member
            for member in self._engine.members()
            if member.environment is not None and member.environment.id == environment and not member.draining
        ]
        if odd is None or odd not in {member.url for member in members} or len(members) < 3:
            return
        _log.warning("%s is drained: the other upstreams of environment %s contradict it", odd, environment)
        await self._record(fleet.DRAIN, odd, {"environment": environment})
        window.without(odd)

    def _measure(self, environment: str, share: Share) -> None:
        self._observer.notice(
            Notice(
                kind="consistency",
                attributes={"environment": environment},
                value=1.0 if share.ratio is None else share.ratio,
                detail={"checked": share.checked, "agreed": share.agreed},
            )
        )

    async def _tell(self, state: str, environment: str, model: str, evidence: Mapping[str, Any]) -> None:
        told = {"state": state, "environment": environment, "model": model, "at": self._clock.now(), **evidence}
        told["state"] = state
        self._observer.notice(Notice(kind=f"consistency-{state}", attributes={"environment": environment}, detail=told))
        if self._hook is None:
            return
        try:
            latest = [each for each in await self._book.latest(EVIDENCE * 5) if each.environment == environment]
        except StoreUnavailable:
            latest = []
        shown = [msgspec.to_builtins({**each.brief(), "odd": each.odd}) for each in latest[:EVIDENCE]]
        task = asyncio.get_running_loop().create_task(self._call({**told, "divergences": shown}))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _call(self, evidence: Mapping[str, Any]) -> None:
        assert self._hook is not None
        try:
            await self._hook(evidence)
        except Exception as failure:
            _log.warning("the hook could not be told: %s", failure)

    async def _record(self, kind: str, subject: str, values: Mapping[str, Any]) -> ControlEvent:
        return await self._control.record(
            ControlEvent(
                kind=kind,
                subject=subject,
                values=dict(values),
                by=self._who,
                reason="verification",
                at=self._clock.now(),
            )
        )
