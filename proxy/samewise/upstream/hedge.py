"""Hedged requests: when the first upstream is slow to begin, a second is asked, and the first answer counts.

Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013. Only for questions whose answer is
the same whoever gives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from samewise.ports import Exchange, UpstreamFailed


async def first_of(first: Awaitable[Exchange], second: Callable[[], Awaitable[Exchange]], after: float) -> Exchange:
    """The exchange that begins first. `second` is asked when `first` has not begun after `after` seconds.

    A failure counts only when the other one fails too, or wasn't asked. Who comes late is closed.
    """
    leading = asyncio.ensure_future(first)
    try:
        done, _ = await asyncio.wait({leading}, timeout=after)
    except asyncio.CancelledError:
        await _give_up({leading})
        raise
    if done:
        return leading.result()
    racing = {leading, asyncio.ensure_future(second())}
    failure: UpstreamFailed | None = None
    try:
        while racing:
            done, racing = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task is not leading):
                try:
                    won = task.result()
                except UpstreamFailed as failed:
                    failure = failure or failed
                    continue
                await _give_up((done | racing) - {task})
                return won
    except asyncio.CancelledError:
        await _give_up(racing)
        raise
    raise failure or UpstreamFailed("unreachable", "nobody was asked")


async def _give_up(tasks: Iterable[asyncio.Future[Exchange]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, BaseException):
            await result.close()
