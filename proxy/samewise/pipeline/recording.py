"""An answer while it arrives: written by one, followed by many from its start, each at its own speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from samewise.core.answer import Answer, Event, Headers, payload
from samewise.core.decide import Discard, Keep

BURST = 64
"""Events that a reader gets at once, at most."""
LEAD = 4 * 1024 * 1024
"""Bytes that the writer may be ahead of the fastest reader before it waits."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer before its body."""

    status: int
    headers: Headers
    streaming: bool
    environment: str | None
    member: str
    instance: str | None
    concurrency: int


class Recording:
    """Shared by a fetch and its callers. It ends in `settle` (whole, decided) or in `fail` (no whole answer).

    `limit` is the size above which it can't be stored: from there on it takes no new followers, and what
    every follower has read is let go.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: list[Event] = []
        self._dropped = 0
        self._followers: set[Follower] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.size = 0
        self.head: Head | None = None
        self.answer: Answer | None = None
        self.decision: Keep | Discard | None = None
        self.failure: Exception | None = None
        self.storing: tuple[float, float] | None = None
        """When the store was asked to keep it (monotonic), and for how many seconds."""
        self.borrowed = False
        """True where another process asked, and this is what it stored."""

    def begin(self, head: Head) -> None:
        """The head has come."""
        self.head = head
        self._wake()

    def add(self, burst: Sequence[Event]) -> None:
        """More events have come."""
        self._events.extend(burst)
        self.size += payload(burst)
        self._wake()

    async def room(self) -> None:
        """Return when some reader is close enough behind, or nobody reads."""
        if self.size <= LEAD:
            return
        while reading := [follower.read for follower in self._followers if follower.reading]:
            if self.size - max(reading) <= LEAD:
                return
            await self._wait()

    def settle(self, answer: Answer, decision: Keep | Discard) -> None:
        """All of it has come, and it is decided whether it is kept."""
        self.answer = answer
        self.decision = decision
        self._wake()

    def fail(self, failure: Exception) -> None:
        """No more will come."""
        self.failure = failure
        self._wake()

    def events(self) -> tuple[Event, ...]:
        """All that has come and was not let go."""
        return tuple(self._events)

    def join(self) -> Follower:
        """A new follower, that gets everything from the start. Only while `joinable`."""
        follower = Follower(self)
        self._followers.add(follower)
        return follower

    @property
    def joinable(self) -> bool:
        """True while a new follower would get everything from the start."""
        return self._dropped == 0 and self.size <= self._limit and self.failure is None

    @property
    def complete(self) -> bool:
        """True while nothing that came was let go: else `events` are only its end."""
        return self._dropped == 0

    @property
    def followers(self) -> int:
        """How many want it."""
        return len(self._followers)

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._let_go()
        self._wake()

    def _since(self, position: int) -> Sequence[Event]:
        index = position - self._dropped
        return self._events[index : index + BURST]

    def _let_go(self) -> None:
        if self.size <= self._limit:
            return
        slowest = min((follower.position for follower in self._followers), default=self._dropped)
        if (count := slowest - self._dropped) > 0:
            del self._events[:count]
            self._dropped = slowest

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _wait(self) -> None:
        one = asyncio.get_running_loop().create_future()
        self._waiting.append(one)
        await one


class Follower:
    """One caller's place in a recording. `leave` when done, whichever way it ended."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.position = 0
        self.read = 0
        self.reading = False

    def leave(self) -> None:
        """Interested no more."""
        self._recording._leave(self)

    async def begun(self) -> Head:
        """The head, as soon as it is there. Raises what ended the fetch before it came."""
        recording = self._recording
        while recording.head is None:
            if recording.failure is not None:
                raise recording.failure
            await recording._wait()
        return recording.head

    async def settled(self) -> Answer:
        """The whole answer. Raises what cut it short."""
        recording = self._recording
        while recording.answer is None:
            if recording.failure is not None:
                raise recording.failure
            await recording._wait()
        return recording.answer

    async def bursts(self) -> AsyncIterator[Sequence[Event]]:
        """Every event from the start, as it comes, those that are there together.

        Raises what cut it short, after all that came before.
        """
        recording = self._recording
        self.reading = True
        while True:
            while burst := recording._since(self.position):
                self.position += len(burst)
                self.read += payload(burst)
                recording._let_go()
                recording._wake()
                yield burst
            if recording.failure is not None:
                raise recording.failure
            if recording.decision is not None:
                return
            await recording._wait()
