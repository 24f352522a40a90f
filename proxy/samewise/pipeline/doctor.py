"""Looks for trouble in what runs, and gathers what the diagnosis needs."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from samewise.core import diagnosis
from samewise.core.diagnosis import Finding
from samewise.pipeline.rollout import Rollout
from samewise.ports import Call, Clock, Engine, Member, UpstreamFailed

_PATIENCE = 3.0
"""Seconds that one upstream may take to tell its time."""


class Doctor:
    """`examine` asks the store what it is; `config` are the settings, masked."""

    def __init__(
        self,
        *,
        engine: Engine,
        examine: Callable[[], Awaitable[Mapping[str, Any]]],
        followed: Rollout,
        clock: Clock,
        config: Mapping[str, Any],
        version: str,
    ) -> None:
        self._engine = engine
        self._examine = examine
        self._followed = followed
        self._clock = clock
        self._config = config
        self._version = version

    async def look(self) -> list[Finding]:
        """One finding a line, in the order of the house. Raises nothing."""
        members = self._engine.members()
        facts, *skews = await asyncio.gather(self._examine(), *(self._skew(member) for member in members))
        rows = [
            {
                "url": member.url,
                "healthy": member.healthy,
                "error": member.error,
                "models": member.models,
                "skew": skew,
            }
            for member, skew in zip(members, skews, strict=True)
        ]
        known = {member.environment.id: member.environment for member in members if member.environment}
        active = [chosen.id for model in self._followed.models() if (chosen := self._followed.active(model))]
        return [
            diagnosis.ok("versions", f"samewise {self._version}, Python {platform.python_version()}"),
            *diagnosis.settings(self._config),
            *diagnosis.store(str(self._config["store"]["url"]), facts),
            *diagnosis.upstreams(rows),
            *diagnosis.environments(list(known.values()), active),
        ]

    async def _skew(self, member: Member) -> float | None:
        """Seconds that the upstream's clock is ahead of ours, to a second; None where it doesn't tell."""
        try:
            async with asyncio.timeout(_PATIENCE):
                call = Call(method="GET", path="/v1/models", member=member.url, purpose="probe")
                exchange = await self._engine.open(call)
                try:
                    told = dict(exchange.headers).get("date")
                finally:
                    await exchange.close()
            return None if told is None else parsedate_to_datetime(told).timestamp() - self._clock.now()
        except (UpstreamFailed, TimeoutError, ValueError):
            return None
