"""Ended entries are freed, others never; at a bounded rate; and it is told how many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from samewise.core.entry import Entry
from samewise.pipeline.invalidate import Invalidations, Scope, event
from samewise.pipeline.reclaim import Reclaimer
from samewise.ports import ControlEvent, Notice, Observer, Store, StoreUnavailable
from samewise.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.entries import make_entry
from tests.support.patience import ENOUGH


class Listener:
    """Keeps notices."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.told = asyncio.Event()

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        self.told.set()


def invalidated(number: int, scope: Scope, value: str) -> ControlEvent:
    made = event(scope, value, by="ada", reason="old", at=1.0)
    return msgspec.structs.replace(made, number=number)


def entry(number: int, **more: Any) -> Entry:
    return make_entry(str(number), **more)


async def filled(clock: ManualClock, entries: Mapping[int, Mapping[str, Any]]) -> MemoryStore:
    store = MemoryStore(1 << 30, clock=clock)
    for number, more in entries.items():
        assert await store.put(entry(number, **more))
    return store


def reclaimer(
    store: Store, invalidations: Invalidations, clock: ManualClock, **more: Any
) -> tuple[Reclaimer, Listener]:
    listener = Listener()
    made = Reclaimer(
        store=store,
        tier="memory",
        ended_by=invalidations.ended_by,
        observer=cast(Observer, listener),
        clock=clock,
        settle=0.0,
        **more,
    )
    return made, listener


async def test_what_was_ended_goes_and_what_was_not_or_came_later_stays() -> None:
    clock = ManualClock()
    models = {number: {"model": f"m-{number % 10}", "began": 5} for number in range(1000)}
    store = await filled(clock, models)
    await store.put(entry(5000, model="m-3", began=9))
    invalidations = Invalidations()
    invalidations.apply(invalidated(7, "model", "m-3"))
    invalidations.apply(invalidated(8, "tag", "t"))
    sweeping, _ = reclaimer(store, invalidations, clock, rate=1e9)
    freed = await sweeping.sweep()
    assert {number: entries for number, (entries, _) in freed.items()} == {7: 100}
    left = [each async for each in store.scan()]
    assert len(left) == 901
    assert {each.began for each in left if each.model == "m-3"} == {9}
    assert await sweeping.sweep() == {}


async def test_a_sweep_tells_by_whom_why_and_how_many_for_each_invalidation() -> None:
    clock = ManualClock()
    store = await filled(clock, {number: {"model": f"m-{number % 2}", "began": 0} for number in range(10)})
    invalidations = Invalidations()
    sweeping, listener = reclaimer(store, invalidations, clock, rate=1e9)
    sweeping.start()
    for made in (invalidated(1, "model", "m-1"), invalidated(2, "model", "nobody")):
        invalidations.apply(made)
        sweeping.due(made)
    async with asyncio.timeout(ENOUGH):
        while len(listener.notices) < 2:
            listener.told.clear()
            await listener.told.wait()
    await sweeping.close()
    assert [(each.kind, each.detail["value"], each.detail["entries"]) for each in listener.notices] == [
        ("reclaimed", "m-1", 5),
        ("reclaimed", "nobody", 0),
    ]
    assert (listener.notices[0].detail["by"], listener.notices[0].detail["reason"]) == ("ada", "old")


async def test_a_sweep_that_the_store_cuts_short_is_repeated(monkeypatch: Any) -> None:
    monkeypatch.setattr("samewise.pipeline.reclaim.RETRY", 0.0)
    clock = ManualClock()
    store = await filled(clock, {number: {"began": 0} for number in range(100)})
    down = [True]

    async def failing(entries: Any) -> int:
        if down:
            down.pop()
            raise StoreUnavailable("timeout")
        return await MemoryStore.reclaim(store, entries)

    monkeypatch.setattr(store, "reclaim", failing)
    invalidations = Invalidations()
    invalidations.apply(invalidated(1, "all", ""))
    sweeping, listener = reclaimer(store, invalidations, clock, rate=1e9)
    sweeping.start()
    sweeping.due(invalidated(1, "all", ""))
    async with asyncio.timeout(ENOUGH):
        await listener.told.wait()
    await sweeping.close()
    assert [each async for each in store.scan()] == []


async def test_a_sweep_looks_at_no_more_than_its_rate() -> None:
    clock = ManualClock()
    store = await filled(clock, {number: {"began": 5} for number in range(500)})
    clock.monotonic = time.monotonic  # type: ignore[method-assign]
    sweeping, _ = reclaimer(store, Invalidations(), clock, rate=5_000)
    began = asyncio.get_running_loop().time()
    await sweeping.sweep()
    assert asyncio.get_running_loop().time() - began >= 0.09
