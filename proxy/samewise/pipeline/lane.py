"""A thread for what is large, so that work on a long prompt holds up nobody's short one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from samewise.core.canonical import LARGE

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """One thread, and not several: those would contend with the event loop for the interpreter's lock.

    Hashing lets go of that lock; reading and writing JSON hold it, in steps that are short (`canonical.LARGE`).
    """

    def __init__(self, large: int = LARGE) -> None:
        """`large`: bytes from which work goes to the thread; below, the way there and back costs more."""
        self._large = large
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large")

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, or raises; done at once, without waiting for anybody, where `size` bytes are few."""
        if size < self._large:
            return work(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def start(self) -> None:
        """The thread starts with the first work."""

    async def close(self) -> None:
        """Take no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
