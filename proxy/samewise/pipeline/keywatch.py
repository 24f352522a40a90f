"""Keys that live in a file of their own, read again whenever it changes: none of them needs a restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence

from samewise.core.tenants import Key
from samewise.ports import Notice, Observer

EVERY = 1.0
"""Seconds between two looks at the file."""


class KeyWatch:
    """`stamp` tells whether the file is another than the one `seen`; `read` gives its keys (ValueError: it can't
    be used), `use` puts them in force. What can't be used changes nothing, and is told of."""

    def __init__(
        self,
        *,
        stamp: Callable[[], Hashable],
        seen: Hashable,
        read: Callable[[], Sequence[Key]],
        use: Callable[[Sequence[Key]], None],
        observer: Observer,
        every: float = EVERY,
    ) -> None:
        self._stamp = stamp
        self._read = read
        self._use = use
        self._observer = observer
        self._every = every
        self._seen = seen
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._watch(), name="keys")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """Take the keys of a file that is another than before."""
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            keys = await asyncio.to_thread(self._read)
        except ValueError as error:
            problem = f"{error}; the keys of before stay in force"
            self._observer.notice(Notice(kind="keys-failed", detail={"problem": problem}))
            return
        self._use(keys)
        self._observer.notice(Notice(kind="keys-read", detail={"keys": len(keys)}))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.look()
