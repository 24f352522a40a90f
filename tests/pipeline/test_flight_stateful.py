"""Shared fetches against a model: whoever asks, leaves, reads slowly or is told to forget, in any order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from samewise.core.answer import Answer, Event
from samewise.core.decide import Keep
from samewise.pipeline.flight import Flights
from samewise.pipeline.recording import Follower, Recording
from tests.support.bursts import each

KEYS = st.sampled_from(["k1", "k2"])
TAGS = st.frozensets(st.sampled_from(["t", "u"]))
LIMIT = 2
"""Bytes above which a recording takes no more followers; an event here has one."""


@dataclass(eq=False)
class Fetch:
    """What the model knows of one fetch."""

    key: str
    tags: frozenset[str]
    orders: asyncio.Queue[str]
    events: int = 0
    open: bool = True
    ended: str = ""

    @property
    def joinable(self) -> bool:
        return self.open and not self.ended and self.events <= LIMIT


@dataclass(eq=False)
class Caller:
    """A follower, the fetch that it must be in, and the task that reads it."""

    fetch: Fetch
    follower: Follower
    got: list[bytes] = field(default_factory=list)
    ended: str = ""
    task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        try:
            async for event in each(self.follower.bursts()):
                self.got.append(event.data)
            self.ended = "settled"
        except ConnectionError:
            self.ended = "failed"


class Machine(RuleBasedStateMachine):
    """Every step runs the loop until nothing moves any more."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.flights = Flights(LIMIT)
        self.open: dict[str, Fetch] = {}
        self.all: list[Caller] = []
        self.calls = 0

    def teardown(self) -> None:
        async def end() -> None:
            for fetch in {caller.fetch for caller in self.all}:
                if not fetch.ended:
                    fetch.orders.put_nowait("settle")
            await self.flights.drain()
            await asyncio.gather(*(caller.task for caller in self.all if caller.task is not None))

        self.loop.run_until_complete(end())
        assert len(self.flights) == 0
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()

    def _turn(self) -> None:
        async def turn() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    @rule(key=KEYS, tags=TAGS)
    def ask(self, key: str, tags: frozenset[str]) -> None:
        fetch = self.open.get(key)
        expected = fetch is not None and fetch.joinable

        async def go() -> tuple[Fetch, Follower]:
            found = self.flights.find(key)
            assert (found is not None) == expected
            if found is not None:
                assert fetch is not None
                return fetch, found[1]
            self.calls += 1
            made = Fetch(key, tags, asyncio.Queue())
            _, follower = self.flights.begin(key, lambda recording: self._fill(made, recording), tags=tags)
            self.open[key] = made
            return made, follower

        joined, follower = self.loop.run_until_complete(go())
        caller = Caller(joined, follower)
        self.all.append(caller)

        async def reads() -> None:
            caller.task = asyncio.get_running_loop().create_task(caller.read())

        self.loop.run_until_complete(reads())
        self._turn()

    @staticmethod
    async def _fill(fetch: Fetch, recording: Recording) -> None:
        while True:
            match await fetch.orders.get():
                case "event":
                    recording.add([Event(bytes([fetch.events % 256]))])
                    fetch.events += 1
                case "settle":
                    recording.settle(Answer(form="sse", body=b""), Keep(1.0))
                    return
                case _:
                    raise ConnectionError("cut")

    @rule(number=st.integers(0, 30), order=st.sampled_from(["event", "event", "event", "settle", "fail"]))
    def upstream(self, number: int, order: str) -> None:
        running = list(dict.fromkeys(caller.fetch for caller in self.all if not caller.fetch.ended))
        if not running:
            return
        fetch = running[number % len(running)]
        fetch.orders.put_nowait(order)
        if order != "event":
            fetch.ended = "settled" if order == "settle" else "failed"
        self._turn()

    @rule(number=st.integers(0, 30))
    def leave(self, number: int) -> None:
        reading = [caller for caller in self.all if caller.task is not None and not caller.task.done()]
        if not reading:
            return
        caller = reading[number % len(reading)]

        async def go() -> None:
            assert caller.task is not None
            caller.task.cancel()
            caller.follower.leave()
            await asyncio.gather(caller.task, return_exceptions=True)
            caller.task = None

        self.loop.run_until_complete(go())
        self._turn()

    @rule(what=st.sampled_from(["key", "tag", "all"]), key=KEYS, tag=st.sampled_from(["t", "u"]))
    def forget(self, what: str, key: str, tag: str) -> None:
        match what:
            case "key":
                self.flights.forget(key=key)
                gone = [fetch for fetch in self.open.values() if fetch.key == key]
            case "tag":
                self.flights.forget(tag=tag)
                gone = [fetch for fetch in self.open.values() if tag in fetch.tags]
            case _:
                self.flights.forget_all()
                gone = list(self.open.values())
        for fetch in gone:
            fetch.open = False

    @invariant()
    def everyone_has_all_that_came_in_order(self) -> None:
        for caller in self.all:
            if caller.task is None:
                continue
            assert len(caller.got) == caller.fetch.events
            assert caller.got == [bytes([number % 256]) for number in range(caller.fetch.events)]
            assert caller.ended == caller.fetch.ended

    @invariant()
    def no_question_under_way_is_asked_twice(self) -> None:
        joinable = {key for key, fetch in self.open.items() if fetch.joinable}
        assert len(self.flights) >= len(joinable)


TestSingleflight = Machine.TestCase
TestSingleflight.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
