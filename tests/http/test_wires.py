"""Many events as bytes are each of them as bytes, and are the same events when they are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from samewise.core.answer import Event
from samewise.http.render import wire, wires
from samewise.upstream.sse import Parser

DATA = st.lists(st.sampled_from([b"a", b"data: ", b":", b" ", b"\n", b"{}"]), min_size=1, max_size=5).map(b"".join)
EVENTS = st.lists(st.builds(Event, DATA, st.sampled_from([None, None, None, "ping", "error"])), max_size=8)


@given(EVENTS)
def test_together_they_are_what_they_are_one_by_one(events: list[Event]) -> None:
    assert wires(events) == b"".join(wire(event) for event in events)


@given(EVENTS)
def test_what_is_written_is_read_again(events: list[Event]) -> None:
    assert Parser().feed(wires(events)) == [event for event in events if event.data]
