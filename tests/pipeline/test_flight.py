"""Singleflight."""

from __future__ import annotations

import asyncio

import pytest

from samewise.core.answer import Answer
from samewise.core.decide import Keep
from samewise.pipeline.flight import Flights
from samewise.pipeline.recording import Recording

ANSWER = Answer(form="json", body=b"{}")


class Upstream:
    """Counts fills and holds them until it is told."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()

    async def fill(self, recording: Recording) -> None:
        self.calls += 1
        await self.go.wait()
        recording.settle(ANSWER, Keep(1.0))


async def test_the_same_question_under_way_is_asked_once() -> None:
    flights, upstream = Flights(100), Upstream()
    _, leader = flights.begin("k", upstream.fill)
    followers = []
    for _ in range(49):
        joined = flights.find("k")
        assert joined is not None
        followers.append(joined[1])
    upstream.go.set()
    assert {await follower.settled() for follower in [leader, *followers]} == {ANSWER}
    assert upstream.calls == 1


async def test_the_fetch_outlives_the_caller_that_began_it() -> None:
    flights, upstream = Flights(100), Upstream()
    _, leader = flights.begin("k", upstream.fill)
    leader.leave()
    joined = flights.find("k")
    assert joined is not None
    upstream.go.set()
    assert await joined[1].settled() == ANSWER


async def test_what_has_landed_is_not_joined_but_looked_for() -> None:
    flights, upstream = Flights(100), Upstream()
    before = flights.landed
    _, leader = flights.begin("k", upstream.fill)
    upstream.go.set()
    await leader.settled()
    assert flights.find("k") is None
    assert flights.landed > before


async def test_newcomers_do_not_join_what_was_forgotten_by_key_tag_or_all() -> None:
    flights, upstream = Flights(100), Upstream()
    flights.begin("by-key", upstream.fill)
    flights.begin("by-tag", upstream.fill, tags=["t"])
    flights.begin("other", upstream.fill, tags=["u"])
    flights.forget(key="by-key")
    flights.forget(tag="t")
    assert flights.find("by-key") is None
    assert flights.find("by-tag") is None
    assert flights.find("other") is not None
    flights.forget_all()
    assert flights.find("other") is None
    upstream.go.set()
    await flights.drain()


async def test_an_older_fetch_that_ends_last_leaves_the_newer_one_joinable() -> None:
    flights, old, new = Flights(100), Upstream(), Upstream()
    _, first = flights.begin("k", old.fill)
    flights.forget(key="k")
    flights.begin("k", new.fill)
    old.go.set()
    await first.settled()
    await asyncio.sleep(0)
    assert flights.find("k") is not None
    new.go.set()
    await flights.drain()
    assert len(flights) == 0


async def test_a_failure_reaches_everyone_and_the_next_one_asks_again() -> None:
    async def fail(recording: Recording) -> None:
        raise ConnectionError("refused")

    flights, upstream = Flights(100), Upstream()
    _, leader = flights.begin("k", fail)
    joined = flights.find("k")
    assert joined is not None
    for follower in (leader, joined[1]):
        with pytest.raises(ConnectionError, match="refused"):
            await follower.settled()
    await flights.drain()
    assert flights.find("k") is None
    flights.begin("k", upstream.fill)
    upstream.go.set()
    await flights.drain()
    assert upstream.calls == 1
