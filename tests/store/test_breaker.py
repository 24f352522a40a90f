"""A circuit opens after failures in a row, asks now and then, and closes when it is answered."""

from __future__ import annotations

from samewise.store.breaker import Breaker
from tests.support.clock import ManualClock


def opened(clock: ManualClock) -> Breaker:
    breaker = Breaker(clock, failures=3, first=1.0, longest=4.0)
    assert [breaker.failure() for _ in range(3)] == [False, False, True]
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(ManualClock(), failures=3)
    for _ in range(10):
        breaker.failure()
        breaker.failure()
        breaker.success()
    assert breaker.closed


def test_one_probe_a_delay_and_nobody_else(clock: ManualClock) -> None:
    breaker = opened(clock)
    assert not breaker.closed
    assert not breaker.due()
    assert breaker.wait() == 1.0
    clock.advance(1.0)
    assert breaker.due()
    assert not breaker.due()


def test_the_delay_doubles_up_to_its_bound(clock: ManualClock) -> None:
    breaker = opened(clock)
    delays = []
    for _ in range(5):
        delays.append(breaker.wait())
        clock.advance(breaker.wait())
        assert breaker.due()
        breaker.failure()
    assert delays == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_an_answered_probe_closes_it_and_the_delay_starts_over(clock: ManualClock) -> None:
    breaker = opened(clock)
    clock.advance(1.0)
    assert breaker.due()
    breaker.failure()
    clock.advance(2.0)
    assert breaker.due()
    breaker.success()
    assert breaker.closed
    for _ in range(3):
        breaker.failure()
    assert breaker.wait() == 1.0


def test_late_replies_of_before_neither_close_it_nor_lengthen_the_delay(clock: ManualClock) -> None:
    breaker = opened(clock)
    breaker.success()
    breaker.failure()
    assert not breaker.closed
    assert breaker.wait() == 1.0
