"""Where one answer comes from: an entry, or a fetch under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from samewise.core import headers
from samewise.core.answer import Answer, Event, Headers
from samewise.core.entry import Entry
from samewise.core.families.contract import Family
from samewise.core.plan import Plan
from samewise.pipeline.recording import Follower, Head, Recording

JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream; charset=utf-8"


class Given(msgspec.Struct, frozen=True):
    """An entry that is served."""

    entry: Entry


class Coming(msgspec.Struct, frozen=True):
    """A fetch that is followed. `task` is set where it is this caller's alone and ends with it."""

    recording: Recording
    follower: Follower
    task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """The caller is done, or gone."""
        self.follower.leave()
        if self.task is not None and not self.task.done():
            self.task.cancel()


Source = Given | Coming


class Live(msgspec.Struct, frozen=True):
    """Events while they come; `cut` makes of a message the one that tells that they broke off."""

    bursts: AsyncIterator[Sequence[Event]]
    cut: Callable[[str], Event]


class Reply(msgspec.Struct, kw_only=True):
    """An answer for one caller: `body`; or `recorded` events, all there; or `live` ones.

    `close` when the caller has it or is gone. `plan` is there where it is one unit's.
    """

    status: int
    headers: Headers
    body: bytes = b""
    recorded: tuple[Event, ...] | None = None
    live: Live | None = None
    sources: tuple[Source, ...] = ()
    plan: Plan | None = None

    @property
    def entry(self) -> Entry | None:
        """The one entry that it was made from, None where it wasn't."""
        match self.sources:
            case (Given(entry),):
                return entry
            case _:
                return None

    def close(self) -> None:
        """Let go of what it came from."""
        for source in self.sources:
            if isinstance(source, Coming):
                source.leave()


def as_body(family: Family, answer: Answer) -> bytes:
    """The JSON body, recorded or made of the recorded events."""
    return answer.body if answer.form == "json" else family.to_body(answer)


def as_events(family: Family, answer: Answer, *, include_usage: bool) -> tuple[Event, ...]:
    """The events, recorded or made of the recorded body, as this caller may see them."""
    events = answer.events if answer.form == "sse" else family.to_events(answer)
    return tuple(family.visible(events, include_usage))


def typed(fields: Headers, answer: Answer, *, stream: bool) -> Headers:
    """The header fields, with the content type of the form in which the answer is given."""
    if stream == (answer.form == "sse"):
        return fields
    others = tuple(field for field in fields if field[0] != "content-type")
    return (("content-type", STREAM_TYPE if stream else JSON_TYPE), *others)


def fields_of(head: Head, *, first: bool) -> Headers:
    """The upstream's fields, as its first caller or any other gets them."""
    return head.headers if first else headers.replayable(head.headers)
