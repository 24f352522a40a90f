"""The memory tier counts what it really takes, and lets the least recently used go first."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.answer import Answer, Event
from samewise.core.entry import Entry
from samewise.store.codec import Codec
from samewise.store.fences import Fences
from samewise.store.memory import MemoryStore, cost_of
from tests.store.conftest import Notices
from tests.support.clock import ManualClock
from tests.support.entries import NOW, entries, key_of, make_entry

CODEC = Codec()


def _json(name: str) -> Entry:
    return make_entry(name, body=b"x" * 1000)


def _stream(name: str) -> Entry:
    events = tuple(Event(data=b"y" * 200) for _ in range(100))
    return make_entry(name, answer=Answer(form="sse", headers=(("content-type", "text/event-stream"),), events=events))


@pytest.mark.parametrize("make", [_json, _stream])
def test_bytes_are_counted_as_they_are_taken(make: Callable[[str], Entry], clock: ManualClock) -> None:
    count = 500
    memory = MemoryStore(1 << 40, clock=clock)
    written = [CODEC.encode(make(str(n))) for n in range(count)]
    keys = [key_of(str(n)) for n in range(count)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for key, data in zip(keys, written, strict=True):
        memory.keep(CODEC.decode(key, data))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = memory.status()[0].bytes
    assert counted is not None
    assert 0.95 < taken / counted < 1.05


def test_an_entry_takes_less_than_600_bytes_beside_its_content() -> None:
    entry = _json("a")
    assert cost_of(entry) - len(entry.key) - len(entry.request) - entry.answer.size() < 600


def test_the_least_recently_used_goes_first_and_is_counted(clock: ManualClock, notices: Notices) -> None:
    cost = cost_of(_json("a"))
    memory = MemoryStore(3 * cost, clock=clock, on_notice=notices)
    for name in "abc":
        memory.keep(_json(name))
    assert memory.peek(key_of("a"), NOW) is not None
    memory.keep(_json("d"))
    assert [memory.peek(key_of(name), NOW) is not None for name in "abcd"] == [True, False, True, True]
    assert memory.evictions == 1
    assert notices.count("store-eviction", tier="memory") == 1


def test_an_entry_larger_than_the_whole_is_refused_and_nothing_goes_for_it(clock: ManualClock) -> None:
    memory = MemoryStore(5000, clock=clock)
    memory.keep(_json("a"))
    assert not memory.keep(make_entry("big", body=b"x" * 5000))
    assert memory.peek(key_of("a"), NOW) is not None


def test_a_peek_is_fresh_at_the_time_that_it_is_told(clock: ManualClock) -> None:
    memory = MemoryStore(1 << 20, clock=clock)
    memory.keep(make_entry("a", ttl=10.0))
    assert memory.peek(key_of("a"), NOW + 9.9) == make_entry("a", ttl=10.0)
    assert memory.peek(key_of("a"), NOW + 10.0) is None
    assert memory.status()[0].entries == 0


@given(st.lists(entries, max_size=12), st.integers(1000, 6000))
def test_the_bound_holds_and_the_count_returns_to_nothing(kept: list[Entry], limit: int) -> None:
    clock = ManualClock(0.0)
    memory = MemoryStore(limit, clock=clock)
    for entry in kept:
        memory.keep(entry)
        size = memory.status()[0].bytes
        assert size is not None
        assert size <= limit
    for entry in kept:
        memory.forget(entry.key, 0)
    assert memory.status()[0].bytes == 0
    assert memory.status()[0].entries == 0


def test_what_is_kept_equals_what_was_put(clock: ManualClock) -> None:
    memory = MemoryStore(1 << 20, clock=clock)
    entry = make_entry("a", tags=("t",), extra={"a": [1]}, ttl=5.0)
    memory.keep(entry)
    assert memory.peek(entry.key, NOW) == entry


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=60), st.integers(1, 4))
def test_bounded_fences_never_admit_what_unbounded_ones_refuse(raised: list[tuple[int, int]], capacity: int) -> None:
    fences, model = Fences(capacity), dict[int, int]()
    for key, fence in raised:
        fences.raise_to(str(key), fence)
        model[key] = max(model.get(key, 0), fence)
    for key in range(10):
        for began in range(21):
            if began < model.get(key, 0):
                assert not fences.admits(str(key), began)


def test_a_fence_concerns_its_key_alone_while_there_is_room() -> None:
    fences = Fences(10)
    fences.raise_to("a", 5)
    assert not fences.admits("a", 4)
    assert fences.admits("a", 5)
    assert fences.admits("b", 0)
