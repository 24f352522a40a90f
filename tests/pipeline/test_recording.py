"""An answer while it arrives."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.answer import Answer, Event
from samewise.core.decide import Keep
from samewise.pipeline import recording as module
from samewise.pipeline.recording import Follower, Recording
from tests.support.bursts import each


def event(text: str) -> Event:
    return Event(data=text.encode())


async def read(follower: Follower) -> list[str]:
    return [event.data.decode() async for event in each(follower.bursts())]


@given(
    texts=st.lists(st.text(max_size=5), max_size=12),
    joins=st.lists(st.integers(min_value=0, max_value=12), min_size=1, max_size=5),
)
def test_whoever_joins_whenever_gets_everything_from_the_start(texts: list[str], joins: list[int]) -> None:
    async def play() -> None:
        recording = Recording(limit=1 << 20)
        readers: list[asyncio.Task[list[str]]] = []
        for position in range(len(texts) + 1):
            readers += [asyncio.create_task(read(recording.join())) for join in joins if join == position]
            if position < len(texts):
                recording.add([event(texts[position])])
            await asyncio.sleep(0)
        recording.settle(Answer(form="sse"), Keep(1.0))
        assert all(got == texts for got in await asyncio.gather(*readers))

    asyncio.run(play())


async def test_a_slow_follower_does_not_hold_up_a_fast_one() -> None:
    recording = Recording(limit=10)
    fast, slow = recording.join(), recording.join()
    slow_events = each(slow.bursts())
    reading = asyncio.create_task(read(fast))
    for number in range(100):
        recording.add([event(f"{number:04}")])
        await recording.room()
        await asyncio.sleep(0)
    recording.settle(Answer(form="sse"), Keep(1.0))
    everything = [f"{number:04}" for number in range(100)]
    assert await reading == everything
    assert [event.data.decode() async for event in slow_events] == everything


async def test_the_writer_waits_when_every_reader_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAD", 8)
    recording = Recording(limit=1 << 20)
    events = each(recording.join().bursts())
    recording.add([event("12345")])
    assert (await anext(events)).data == b"12345"
    recording.add([event("123456789")])
    waiting = asyncio.create_task(recording.room())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    await anext(events)
    await waiting


async def test_what_everyone_has_read_of_an_answer_too_large_to_keep_is_let_go() -> None:
    recording = Recording(limit=4)
    follower = recording.join()
    events = each(follower.bursts())
    for text in ("abc", "def", "ghi"):
        recording.add([event(text)])
        await anext(events)
    assert recording.events() == ()
    assert not recording.joinable


async def test_a_failure_comes_after_all_that_came_before() -> None:
    recording = Recording(limit=100)
    events = each(recording.join().bursts())
    recording.add([event("a")])
    recording.fail(ConnectionError("cut"))
    assert (await anext(events)).data == b"a"
    with pytest.raises(ConnectionError, match="cut"):
        await anext(events)
    assert not recording.joinable


async def test_waiting_for_the_head_ends_with_what_kept_it_from_coming() -> None:
    recording = Recording(limit=100)
    follower = recording.join()
    waiting = asyncio.create_task(follower.begun())
    await asyncio.sleep(0)
    recording.fail(ConnectionError("refused"))
    with pytest.raises(ConnectionError, match="refused"):
        await waiting


async def test_a_follower_that_is_cancelled_disturbs_nobody() -> None:
    recording = Recording(limit=100)
    first, second = asyncio.create_task(read(recording.join())), asyncio.create_task(read(recording.join()))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    recording.add([event("a")])
    recording.settle(Answer(form="sse"), Keep(1.0))
    assert await second == ["a"]
