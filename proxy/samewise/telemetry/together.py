"""One process or several, as operators see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from samewise.telemetry import prometheus
from samewise.telemetry.observer import Telemetry, hit_ratio
from samewise.telemetry.recent import newest
from samewise.telemetry.snapshot import Snapshot, merge

_WAITING = 4096


class Others(Protocol):
    """The processes beside this one."""

    async def told(self) -> tuple[Sequence[Snapshot], Sequence[dict[str, Any]]]:
        """Their snapshots and statuses."""

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens in them."""

    async def recent(self, limit: int) -> Sequence[dict[str, Any]]:
        """The last things that happened in each of them."""


class Together:
    """What this process and the `others` tell, as one. Without others: this process."""

    def __init__(self, own: Telemetry, others: Others | None = None) -> None:
        self._own = own
        self._others = others

    async def prometheus(self, accept: str | None = None) -> tuple[bytes, str]:
        """The exposition and its content type."""
        if self._others is None:
            return self._own.prometheus(accept)
        snapshots, _ = await self._others.told()
        content_type = prometheus.negotiate(accept)
        return prometheus.exposition(merge([self._own.snapshot(), *snapshots]), content_type), content_type

    async def status(self) -> dict[str, Any]:
        """Totals since the start and rates of the last minute, as JSON values."""
        own = self._own.status()
        if self._others is None:
            return own
        _, statuses = await self._others.told()
        total = _sum([own, *statuses])
        total["hit_ratio"] = hit_ratio(total["requests"])
        total["hit_ratio_last_minute"] = hit_ratio(total["rate"])
        return {**total, "workers": 1 + len(statuses)}

    async def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last requests and notices, newest first, as JSON values."""
        own = self._own.recent.told(limit)
        return own if self._others is None else newest([*own, *await self._others.recent(limit)], limit)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """What happens from now on, as JSON values."""
        happened: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue(_WAITING)

        async def follow(events: AsyncIterator[dict[str, Any]]) -> None:
            try:
                async for event in events:
                    if not happened.full():
                        happened.put_nowait(event)
            except RuntimeError as error:
                await happened.put(error)

        sources = [self._own.events(), *([] if self._others is None else [self._others.events()])]
        tasks = [asyncio.create_task(follow(source)) for source in sources]
        try:
            while True:
                next_one = await happened.get()
                if isinstance(next_one, Exception):
                    raise next_one
                yield next_one
        finally:
            for task in tasks:
                task.cancel()


def _sum(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers added up member by member; what is no number is the first one's."""
    total: dict[str, Any] = {}
    for value in values:
        for name, item in value.items():
            known = total.get(name)
            match item:
                case dict():
                    total[name] = _sum([known or {}, item])
                case bool() | None:
                    total.setdefault(name, item)
                case int() | float():
                    total[name] = round((known or 0) + item, 3)
                case _:
                    total.setdefault(name, item)
    return total
