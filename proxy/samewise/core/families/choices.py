"""What chat and text completions share: answers made of choices, streams made of chunks that end in `[DONE]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from samewise.core.answer import DONE, Answer, Event, Usage
from samewise.core.families import merge, wire
from samewise.core.reason import Reason

FAILED = frozenset({"error", "abort", "aborted", "cancelled", "canceled"})
"""Finish reasons that no model gives."""
_USAGE = b'"usage"'
_NO_USAGE_END = b',"usage":null}'
_DONE_EVENT = Event(DONE)

DELIVERY = frozenset(
    {
        "stream",
        "stream_options",
        "stream_interval",
        "user",
        "metadata",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "request_id",
        "session_id",
        "priority",
    }
)
"""Members that say who asks, how the answer travels, and when and where it is worked on, never what it is."""

TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
"""Members that point at another server's memory."""


def done() -> Event:
    """The end of a stream."""
    return _DONE_EVENT


def cut(message: str) -> Event:
    """An error as OpenAI's servers tell it within a stream."""
    return wire.event(
        {"error": {"message": message, "type": "server_error", "param": None, "code": "upstream_truncated"}}
    )


def ends(event: Event) -> bool:
    """True for `[DONE]`."""
    return event.data == DONE


def upstream_stream(body: dict[str, Any]) -> dict[str, Any]:
    """The body as a stream that tells its usage; other stream options stay as they were."""
    return {
        **body,
        "stream": True,
        "stream_options": {**wire.mapping(body.get("stream_options")), "include_usage": True},
    }


def visible(events: Sequence[Event], include_usage: bool) -> Sequence[Event]:
    """The events without keep-alives and the usage that this caller didn't ask for."""
    plain = [event.data for event in events if event.name is None and event.data]
    data = b"\n".join(plain)
    at = -1 if include_usage else data.find(_USAGE)
    if len(plain) == len(events) and at < 0:
        return events
    as_lines = len(plain) == len(events) == data.count(b"\n") + 1
    before = data.count(b"\n", 0, at) if as_lines else 0
    return [*events[:before], *filter(None, (_visible(event, include_usage) for event in events[before:]))]


def _visible(event: Event, include_usage: bool) -> Event | None:
    data = event.data
    if wire.is_noise(event):
        return None
    if include_usage or _USAGE not in data:
        return event
    if data.endswith(_NO_USAGE_END) and data.count(_USAGE) == 1:
        return Event(data[: -len(_NO_USAGE_END)] + b"}", event.name)
    chunk = wire.peek(event)
    if chunk is None or "usage" not in chunk:
        return event
    if chunk["usage"] is not None and not chunk.get("choices"):
        return None
    return wire.event({name: value for name, value in chunk.items() if name != "usage"}, event.name)


def wanted(request: Mapping[str, Any]) -> int:
    """Choices that a whole answer has."""
    return max(1, wire.number(request.get("n")))


def failure(answer: Answer, count: int) -> Reason | None:
    """Why the answer is not whole; `count` is how many choices it must have."""
    if answer.form == "sse":
        return _stream_failure(answer.events, count)
    try:
        body = wire.load_object(answer.body)
    except ValueError:
        return Reason.TRUNCATED
    if has_error(body):
        return Reason.UPSTREAM_ERROR
    found = wire.objects(body.get("choices"))
    if len(found) > count:
        return Reason.UPSTREAM_ERROR
    return _unfinished({index_of(choice, at): choice.get("finish_reason") for at, choice in enumerate(found)}, count)


def index_of(choice: Mapping[str, Any], position: int = 0) -> int:
    """The number of a choice, its position where it tells none."""
    index = choice.get("index")
    return index if isinstance(index, int) else position


def has_error(value: Mapping[str, Any]) -> bool:
    """True for an object that tells an error, in any of the spellings seen."""
    return _tells_error(value.get("error"), value.get("object"), value.get("type"))


def _tells_error(error: Any, kind: Any, event: Any) -> bool:
    return bool(error) or kind == "error" or event == "error"


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    """What of a chunk tells that it is an error, or that a choice ends: a stream has thousands."""

    error: Any = None
    object: Any = None
    type: Any = None
    choices: list[_Choice] = []


_chunk = msgspec.json.Decoder(_Chunk).decode


def _glance(data: bytes) -> _Chunk:
    """A chunk, read no further than it must be. Raises ValueError where it is no JSON object."""
    try:
        if data.isascii() or data.decode():
            return _chunk(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    whole = wire.load_object(data)
    found = [_Choice(choice.get("index"), choice.get("finish_reason")) for choice in wire.objects(whole.get("choices"))]
    return _Chunk(whole.get("error"), whole.get("object"), whole.get("type"), found)


def _stream_failure(events: Sequence[Event], count: int) -> Reason | None:
    finished: dict[int, Any] = {}
    for event in events:
        data = event.data
        if event.name == "error":
            return Reason.UPSTREAM_ERROR
        if data == DONE or wire.is_noise(event):
            continue
        try:
            chunk = _glance(data)
        except ValueError:
            return Reason.UPSTREAM_ERROR
        if _tells_error(chunk.error, chunk.object, chunk.type):
            return Reason.UPSTREAM_ERROR
        for choice in chunk.choices:
            index = choice.index if isinstance(choice.index, int) else 0
            finished[index] = choice.finish_reason or finished.get(index)
    if not events or events[-1].data != DONE:
        return Reason.TRUNCATED
    return _unfinished(finished, count)


def _unfinished(finished: Mapping[int, Any], count: int) -> Reason | None:
    if any(isinstance(reason, str) and reason in FAILED for reason in finished.values()):
        return Reason.UPSTREAM_ERROR
    if set(finished) != set(range(count)) or not all(finished.values()):
        return Reason.TRUNCATED
    return None


def fold(events: Iterable[Event], add: Callable[[dict[str, Any], dict[str, Any]], None]) -> dict[str, Any]:
    """The body that the chunks add up to; `add` puts what a chunk says of a choice to that choice."""
    body: dict[str, Any] = {}
    by_index: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = None if wire.is_noise(event) else wire.peek(event)
        if chunk is None:
            continue
        merge.keep(body, {name: value for name, value in chunk.items() if name != "choices"})
        body.setdefault("choices", [])
        for choice in wire.objects(chunk.get("choices")):
            index = index_of(choice)
            add(by_index.setdefault(index, {"index": index}), choice)
    if body.get("usage", 0) is None:
        del body["usage"]
    body["choices"] = [by_index[index] for index in sorted(by_index)]
    return body


def add_tokens(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add the tokens and log-probabilities of one chunk to a choice."""
    if isinstance(part.get("logprobs"), dict):
        if not isinstance(choice.get("logprobs"), dict):
            choice["logprobs"] = {}
        merge.extend(choice["logprobs"], part["logprobs"])
    elif "logprobs" in part:
        choice.setdefault("logprobs", part["logprobs"])
    if isinstance(part.get("token_ids"), list):
        if not isinstance(choice.get("token_ids"), list):
            choice["token_ids"] = []
        choice["token_ids"].extend(part["token_ids"])
    elif "token_ids" in part:
        choice.setdefault("token_ids", part["token_ids"])


def tokens_of(choice: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a choice says of its tokens, and what it has for that but leaves empty."""
    told = {str(name): choice[name] for name in ("logprobs", "token_ids") if name in choice}
    full = {name: value for name, value in told.items() if value}
    return full, {name: value for name, value in told.items() if not value}


def usage(answer: Answer) -> Usage:
    """The tokens that the answer tells, zeros where it tells none."""
    counts = told_usage(answer)
    details = wire.mapping(counts.get("prompt_tokens_details"))
    return Usage(
        prompt_tokens=wire.number(counts.get("prompt_tokens")),
        completion_tokens=wire.number(counts.get("completion_tokens")),
        cached_tokens=wire.number(details.get("cached_tokens")),
    )


def told_usage(answer: Answer) -> dict[str, Any]:
    """The `usage` member of a body, or the last one of a stream; empty where there is none."""
    if answer.form == "json":
        try:
            return wire.mapping(wire.load_object(answer.body).get("usage"))
        except ValueError:
            return {}
    for event in reversed(answer.events):
        if _USAGE in event.data and (counts := (wire.peek(event) or {}).get("usage")):
            return wire.mapping(counts)
    return {}


def add_counts(total: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Usage of two answers together: numbers add up, at any depth; what is no number stays as it was first."""
    for name, value in more.items():
        known = total.get(name)
        if isinstance(value, dict):
            total[name] = add_counts(dict(wire.mapping(known)), value)
        elif isinstance(value, int | float) and isinstance(known, int | float) and not isinstance(value, bool):
            total[name] = known + value
        elif known is None:
            total[name] = value
    return total


def as_json(answer: Answer, body: bytes) -> Answer:
    """The same answer in JSON form."""
    return msgspec.structs.replace(answer, form="json", body=body, events=())
