"""Who takes nothing is let go; who takes a little, now and then, is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from samewise.http.outlet import Outlet

PATIENCE = 7.0


class Timer:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Time passes when `tick` says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> Timer:
        assert delay == PATIENCE
        self.timers.append(Timer(lambda: call(*args)))
        return self.timers[-1]

    def tick(self) -> None:
        """As long as patience lasts."""
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.cancelled:
                timer.run()


class Transport:
    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def outlet(loop: Loop) -> Outlet:
    return Outlet(cast(asyncio.AbstractEventLoop, loop), PATIENCE)


def stuck(outlet: Outlet, waiting: int) -> Transport:
    transport = Transport(waiting)
    outlet.stuck(cast(asyncio.WriteTransport, transport))
    return transport


def test_who_takes_nothing_is_let_go(outlet: Outlet, loop: Loop) -> None:
    transport = stuck(outlet, 1000)
    assert not transport.aborted
    loop.tick()
    assert transport.aborted


def test_who_takes_a_byte_each_time_may_take_for_ever(outlet: Outlet, loop: Loop) -> None:
    transport = stuck(outlet, 100)
    for _ in range(100):
        transport.waiting -= 1
        loop.tick()
        assert not transport.aborted
    loop.tick()
    assert transport.aborted, "but not longer"


def test_who_took_enough_is_watched_no_more(outlet: Outlet, loop: Loop) -> None:
    transport = stuck(outlet, 1000)
    outlet.free()
    loop.tick()
    assert not transport.aborted
    assert loop.timers == []


def test_one_timer_a_connection_however_often_it_is_stuck(outlet: Outlet, loop: Loop) -> None:
    for _ in range(50):
        stuck(outlet, 1000)
        outlet.free()
    stuck(outlet, 1000)
    assert sum(not timer.cancelled for timer in loop.timers) == 1
