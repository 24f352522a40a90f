"""The recent past, bounded: what `tail`, `stats` and the dashboard show."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import msgspec

from samewise.ports import Clock, Notice, Record

WINDOW = 60.0


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, with the time in seconds since the epoch. `event` is `request` or `notice`."""

    event: str
    at: float
    record: Record | None = None
    notice: Notice | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON values. What a request asked and what was answered is in none of them."""
        if self.record is not None:
            skipped = {"leader", "started", "upstream_started", "store_started", "content"}
            shown = {name: value for name, value in msgspec.structs.asdict(self.record).items() if name not in skipped}
            usage = self.record.usage
            shown["usage"] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
            shown["prefix_cached"] = self.record.prefix_cached
            return {"event": self.event, "at": self.at, **shown}
        skipped = {"trace", "started"}
        told = msgspec.structs.asdict(self.notice) if self.notice else {}
        shown = msgspec.to_builtins({name: item for name, item in told.items() if name not in skipped}, enc_hook=str)
        return {"event": self.event, "at": self.at, **shown}


class Again(msgspec.Struct, frozen=True, gc=False):
    """A request that differs from `like` in these alone; put together only when somebody looks."""

    like: Record
    request_id: str
    started: float
    duration: float
    age: float
    lookup: float

    def record(self) -> Record:
        return msgspec.structs.replace(
            self.like,
            request_id=self.request_id,
            started=self.started,
            duration=self.duration,
            first_byte=self.duration,
            age=self.age,
            lookup=self.lookup,
        )


class Recent:
    """The last records and notices, and those who listen. For one event loop.

    A listener that falls behind loses the oldest; nobody waits for it.
    """

    def __init__(self, clock: Clock, *, keep: int = 512, waiting: int = 1024, listeners: int = 64) -> None:
        self._clock = clock
        self._records: deque[Record | Again] = deque(maxlen=keep)
        self._notices: deque[Happened] = deque(maxlen=keep)
        self._waiting = waiting
        self._limit = listeners
        self._listeners: set[_Listener] = set()

    def add(self, record: Record) -> None:
        self._records.append(record)
        if self._listeners:
            self._tell(self._of(record))

    def again(
        self,
        like: Record,
        request_id: str,
        started: float,
        duration: float,
        age: float,
        *,
        lookup: float,
    ) -> None:
        """Remember a request like another."""
        again = Again(like, request_id, started, duration, age, lookup)
        self._records.append(again)
        if self._listeners:
            self._tell(self._of(again))

    def notice(self, notice: Notice) -> None:
        happened = Happened(event="notice", at=self._clock.now(), notice=notice)
        self._notices.append(happened)
        self._tell(happened)

    def records(self, limit: int = 100) -> list[Happened]:
        """Newest first."""
        return [self._of(record) for record in list(reversed(self._records))[:limit]]

    def notices(self, limit: int = 100) -> list[Happened]:
        """Newest first."""
        return list(reversed(self._notices))[:limit]

    def told(self, limit: int = 100) -> list[dict[str, Any]]:
        """Requests and notices, newest first, as JSON values."""
        return newest([each.plain() for each in (*self.records(limit), *self.notices(limit))], limit)

    async def subscribe(self) -> AsyncGenerator[Happened, None]:
        """What happens from now on, until the caller stops. Raises RuntimeError where too many listen already."""
        if len(self._listeners) >= self._limit:
            raise RuntimeError(f"at most {self._limit} may listen at once")
        listener = _Listener(self._waiting)
        self._listeners.add(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.discard(listener)

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def _of(self, remembered: Record | Again) -> Happened:
        record = remembered.record() if isinstance(remembered, Again) else remembered
        ended = self._clock.now() - (self._clock.monotonic() - record.started - record.duration)
        return Happened(event="request", at=ended, record=record)

    def _tell(self, happened: Happened) -> None:
        for listener in self._listeners:
            listener.put(happened)


def newest(events: Iterable[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The last `limit` of what happened, newest first."""
    return sorted(events, key=lambda event: float(event["at"]), reverse=True)[:limit]


class Rates:
    """Requests by outcome over the last minute, from totals that are looked at once a second."""

    def __init__(self, clock: Clock, totals: Callable[[], Mapping[str, int]]) -> None:
        self._clock = clock
        self._totals = totals
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=int(WINDOW) + 2)
        self._next = clock.monotonic() + 1
        self._samples.append((clock.monotonic(), {}))

    def look(self, now: float) -> None:
        """Cheap; to be called often. `now` is monotonic."""
        if now >= self._next:
            self._next = now + 1
            self._samples.append((now, dict(self._totals())))

    def last_minute(self) -> dict[str, float]:
        """Requests a second by outcome, over the last minute or since the start."""
        now = self._clock.monotonic()
        then, before = self._samples[0]
        for moment, totals in self._samples:
            if moment > now - WINDOW:
                break
            then, before = moment, totals
        passed = max(now - then, 1e-9)
        return {outcome: (count - before.get(outcome, 0)) / passed for outcome, count in self._totals().items()}


class _Listener:
    def __init__(self, waiting: int) -> None:
        self._queue: deque[Happened] = deque(maxlen=waiting)
        self._ready = asyncio.Event()

    def put(self, happened: Happened) -> None:
        self._queue.append(happened)
        self._ready.set()

    async def next(self) -> Happened:
        while not self._queue:
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()
