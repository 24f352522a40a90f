"""What families answer whose every request is one question with one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer, Event


def split(body: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The body itself."""
    return [body]


def batch(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The only request; raises ValueError for several, which are asked one by one."""
    if len(requests) != 1:
        raise ValueError("requests of this family are asked one by one")
    return requests[0]


def unbatch(answer: Answer, requests: Sequence[dict[str, Any]]) -> Sequence[Answer]:
    """The answer to the only request; raises ValueError for several."""
    batch(requests)
    return [answer]


def join(answers: Sequence[Answer], requests: Sequence[dict[str, Any]]) -> Answer:
    """The only answer; raises ValueError for several."""
    if len(answers) != 1 or len(requests) != 1:
        raise ValueError("an answer of this family stands alone")
    return answers[0]


def shift(event: Event, unit: int, request: Mapping[str, Any], like: Event | None = None) -> Event:
    """The event as it is: there are no others beside its stream."""
    return event


def no_stream(body: dict[str, Any]) -> dict[str, Any]:
    """The body as it is: this family doesn't stream."""
    return body


def never_ends(event: Event) -> bool:
    """False: this family doesn't stream."""
    return False


def all_visible(events: Sequence[Event], include_usage: bool) -> Sequence[Event]:
    """The events as they are: nothing in them is for some callers only."""
    return events


def no_events(answer: Answer) -> tuple[Event, ...]:
    """What was recorded as events, if anything: a JSON body has no form as a stream here."""
    return answer.events


def body(answer: Answer) -> bytes:
    """The recorded body."""
    return answer.body


def closing(answers: Sequence[Answer], requests: Sequence[Mapping[str, Any]], include_usage: bool) -> tuple[Event, ...]:
    """Nothing: streams of this family end by themselves."""
    return ()
