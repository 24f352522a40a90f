"""Singleflight: the same question asked while it is being answered is not asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from samewise.pipeline.recording import Follower, Recording
from samewise.ports import Trace

Fill = Callable[[Recording], Awaitable[None]]
"""Writes a recording to its end (`settle`), or raises."""


class Flights:
    """Fetches under way, by key. Each belongs to nobody: it survives the caller that began it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, Recording] = {}
        self._tags: dict[str, frozenset[str]] = {}
        self._tenants: dict[str, str] = {}
        self._traces: dict[str, Trace | None] = {}
        self._tasks: dict[asyncio.Task[None], Recording] = {}
        self.landed = 0
        """Fetches that ended so far: unchanged since a lookup means that nothing can have been stored since."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Callers of all fetches that run. May be asked from any thread."""
        return sum(recording.followers for recording in tuple(self._tasks.values()))

    def find(self, key: str) -> tuple[Recording, Follower, Trace | None] | None:
        """A place in the fetch for this key that is under way, where it can still be joined from its start."""
        recording = self._open.get(key)
        if recording is None:
            return None
        if recording.decision is not None:
            self._close(key, recording)
            return None
        if not recording.joinable:
            return None
        return recording, recording.join(), self._traces.get(key)

    def begin(
        self, key: str, fill: Fill, *, tags: Iterable[str] = (), tenant: str = "", trace: Trace | None = None
    ) -> tuple[Recording, Follower]:
        """A new shared fetch, followed by its first caller, in whose trace it runs. `tags` are the tenant's."""
        recording = Recording(self._limit)
        self._open[key] = recording
        self._tags[key] = frozenset(tags)
        self._tenants[key] = tenant
        self._traces[key] = trace
        follower = recording.join()
        task = self._spawn(recording, fill)
        task.add_done_callback(lambda _: self._close(key, recording))
        return recording, follower

    def alone(self, fill: Fill) -> tuple[Recording, Follower, asyncio.Task[None]]:
        """A fetch for one caller, that nobody can join; cancel its task when the caller leaves."""
        recording = Recording(self._limit)
        follower = recording.join()
        return recording, follower, self._spawn(recording, fill)

    def forget(self, *, key: str | None = None, tag: str | None = None, tenant: str = "") -> None:
        """Newcomers no longer join these fetches; who is in stays in. `tenant`: those of this one alone."""
        if key is not None:
            self._drop(key)
        if tag is not None:
            for tagged in [name for name, tags in self._tags.items() if tag in tags]:
                if tenant in {"", self._tenants[tagged]}:
                    self._drop(tagged)

    def forget_all(self) -> None:
        """Newcomers join nothing that is under way."""
        self._open.clear()
        self._tags.clear()
        self._tenants.clear()
        self._traces.clear()

    async def drain(self) -> None:
        """Return when every fetch has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, recording: Recording, fill: Fill) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(recording, fill))
        self._tasks[task] = recording
        task.add_done_callback(self._tasks.pop)
        return task

    async def _run(self, recording: Recording, fill: Fill) -> None:
        try:
            await fill(recording)
        except Exception as failure:
            recording.fail(failure)
        except asyncio.CancelledError:
            recording.fail(ConnectionAbortedError("the fetch was given up"))
            raise

    def _close(self, key: str, recording: Recording) -> None:
        self.landed += 1
        if self._open.get(key) is recording:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._open.pop(key, None)
        self._tags.pop(key, None)
        self._tenants.pop(key, None)
        self._traces.pop(key, None)
