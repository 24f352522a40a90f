"""How long until every proxy knows of an invalidation, by the product's own watch on a loop whose time is made up."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from samewise.store.wake import Watch

ROUND_TRIP = 0.001
"""Seconds to Redis and back."""
LOST = 0.01
"""The share of words that never arrive."""


class _Selector(selectors.SelectSelector):
    """Nothing ever comes from outside: where the loop would wait, its time goes on at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class MadeUp(asyncio.SelectorEventLoop):
    """An event loop that sleeps in no time."""

    def __init__(self) -> None:
        self._made_up = _Selector()
        super().__init__(self._made_up)

    def time(self) -> float:
        return self._made_up.now


def in_no_time(what: Callable[[], Coroutine[Any, Any, list[float]]]) -> list[float]:
    """Run it on such a loop."""
    with asyncio.Runner(loop_factory=MadeUp) as runner:
        return runner.run(what())


async def spread(proxies: int, changes: int, *, told: bool, seed: int) -> list[float]:
    """For each change and each proxy, seconds until it knows. `told`: by pub/sub too, of which some is lost."""
    loop, source = asyncio.get_running_loop(), random.Random(f"{seed} {told}")
    number, at, delays = 0, 0.0, []
    known = asyncio.Condition()
    knows = [0] * proxies

    async def look() -> int:
        await asyncio.sleep(ROUND_TRIP)
        return number

    async def follow(proxy: int, watch: Watch) -> None:
        await asyncio.sleep(source.random())
        async for _ in watch.listen():
            await asyncio.sleep(ROUND_TRIP)
            if knows[proxy] < number:
                knows[proxy] = number
                delays.append(loop.time() - at)
                async with known:
                    known.notify_all()

    watches = [Watch(look, lambda: told) for _ in range(proxies)]
    following = [asyncio.create_task(follow(at, watch)) for at, watch in enumerate(watches)]
    for change in range(1, changes + 1):
        await asyncio.sleep(2 + source.random())
        number, at = change, loop.time()
        for watch in watches if told else ():
            if source.random() >= LOST:
                loop.call_later(ROUND_TRIP, watch.wake)
        async with known:
            while min(knows) < change:
                await known.wait()
    for watch in watches:
        watch.close()
    await asyncio.gather(*following)
    return delays


def figures(proxies: int, changes: int, seed: int, rate: float) -> list[dict[str, Any]]:
    """Median and last over all changes, and how many answers to a change began under the old epoch at that rate."""
    rows = []
    for told in (False, True):

        async def run(told: bool = told) -> list[float]:
            return await spread(proxies, changes, told=told, seed=seed)

        delays = sorted(in_no_time(run))
        rows.append(
            {
                "by": "pub/sub and looking" if told else "looking alone",
                "median": delays[len(delays) // 2],
                "last": delays[-1],
                "late": rate * sum(delays) / len(delays),
            }
        )
    return rows
