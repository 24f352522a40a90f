"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer, Event
from samewise.core.families import alone, choices, chunks, media, merge, pieces, wire
from samewise.core.families.contract import Output
from samewise.core.families.outputs import chat_output
from samewise.core.reason import Reason

_OWN_TOOLS = frozenset({"function", "custom"})
_TEXTS = ("reasoning_content", "reasoning", "content", "refusal")
_EVERY_CHUNK = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_MERGED = frozenset({"index", "delta", "message", "logprobs", "token_ids"})


class Chat:
    """Messages in, choices with a message each out."""

    name = "chat"
    path = "/v1/chat/completions"
    delivery = choices.DELIVERY
    sampled = True
    seeded = True
    together = False

    split = staticmethod(alone.split)
    batch = staticmethod(alone.batch)
    unbatch = staticmethod(alone.unbatch)
    join = staticmethod(alone.join)
    shift = staticmethod(alone.shift)
    closing = staticmethod(alone.closing)
    ends = staticmethod(choices.ends)
    cut = staticmethod(choices.cut)
    noise = staticmethod(wire.is_noise)
    visible = staticmethod(choices.visible)
    usage = staticmethod(choices.usage)
    upstream_stream = staticmethod(choices.upstream_stream)

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """Remote media in any message; tools that the server runs; audio, files or KV that it keeps."""
        if body.get("web_search_options") is not None or any(body.get(name) for name in choices.TRANSFERS):
            return Reason.STATEFUL
        if any(tool.get("type", "function") not in _OWN_TOOLS for tool in wire.objects(body.get("tools"))):
            return Reason.STATEFUL
        for message in wire.objects(body.get("messages")):
            if wire.mapping(message.get("audio")).get("id"):
                return Reason.STATEFUL
            reason = media.refusal(message.get("content"))
            if reason is not None:
                return reason
        return None

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, a choice too few or too many, one without an end, a stream without `[DONE]`."""
        return choices.failure(answer, choices.wanted(request))

    def to_body(self, answer: Answer) -> bytes:
        """The chunks as one `chat.completion`."""
        if answer.form == "json":
            return answer.body
        body = choices.fold(answer.events, _add)
        if body.get("object") in (None, "chat.completion.chunk"):
            body["object"] = "chat.completion"
        body["choices"] = [_whole(choice) for choice in body["choices"]]
        return wire.dump(body)

    def to_events(self, answer: Answer) -> tuple[Event, ...]:
        """A role chunk, the texts and tool calls in pieces and a finish chunk for each choice, usage, `[DONE]`."""
        if answer.form == "sse":
            return answer.events
        body = wire.load_object(answer.body)
        head = {name: body[name] for name in _EVERY_CHUNK if name in body} | {"object": "chat.completion.chunk"}
        rest = {name: value for name, value in body.items() if name not in head and name not in ("choices", "usage")}
        found: list[Event] = []
        for choice in wire.objects(body.get("choices")):
            for part in _parts(choice):
                found.append(wire.event({**head, "choices": [part], **rest}))
                rest = {}
        if rest:
            found.append(wire.event({**head, "choices": [], **rest}))
        if body.get("usage") is not None:
            found.append(wire.event({**head, "choices": [], "usage": body["usage"]}))
        return (*found, choices.done())

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One a choice."""
        body = wire.load_object(self.to_body(answer))
        return [chat_output(choice, at) for at, choice in enumerate(wire.objects(body.get("choices")))]


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    delta = part.get("delta")
    if isinstance(delta, dict):
        merge.extend(choice.setdefault("message", {}), delta)
    elif isinstance(part.get("message"), dict):
        merge.extend(choice.setdefault("message", {}), part["message"])
    choices.add_tokens(choice, part)
    merge.keep(choice, {name: value for name, value in part.items() if name not in _MERGED})


def _whole(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice with what a message always has, and without what only chunks have."""
    message = {"role": "assistant", "content": None, **choice.get("message", {})}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        ordered = (
            sorted(calls, key=lambda call: call.get("index", 0)) if all(isinstance(c, dict) for c in calls) else calls
        )
        message["tool_calls"] = [
            {name: value for name, value in call.items() if name != "index"} if isinstance(call, dict) else call
            for call in ordered
        ]
    if message["content"] == "" and (message.get("tool_calls") or message.get("function_call")):
        message["content"] = None
    rest = {name: value for name, value in choice.items() if name not in ("index", "message")}
    return {"index": choice["index"], "message": message, **rest}


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The choice as the choices of consecutive chunks."""
    message = wire.mapping(choice.get("message"))
    index = choices.index_of(choice)
    at_end = {
        name: value for name, value in choice.items() if name not in ("index", "message", "logprobs", "token_ids")
    }
    with_tokens, nothing = choices.tokens_of(choice)

    def part(delta: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": None, **more}

    yield part(_opening(message), nothing)
    others = {name: value for name, value in message.items() if name not in ("role", "tool_calls")}
    others = {name: value for name, value in others.items() if not (value is None or _is_text(name, value))}
    deltas = [*_texts(message, with_tokens), *([(others, {})] if others else []), *_calls(message)]
    for delta, more in deltas:
        yield part(delta, more)
    placed = {name for _, more in deltas for name in more}
    left = {name: value for name, value in with_tokens.items() if name not in placed}
    yield part({}, {**left, **at_end})


def _opening(message: dict[str, Any]) -> dict[str, Any]:
    """Role, and what the message has but says nothing in."""
    empty = {name: value for name, value in message.items() if value is None or (value == "" and name in _TEXTS)}
    content = {"content": "" if isinstance(message.get("content"), str) else None}
    calls = message.get("tool_calls")
    if "tool_calls" in message and (not calls or not wire.objects(calls)):
        empty["tool_calls"] = calls
    return {"role": message.get("role") or "assistant", **content, **empty}


def _is_text(name: str, value: Any) -> bool:
    return name in _TEXTS and isinstance(value, str)


def _texts(message: dict[str, Any], with_tokens: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The texts of a message in pieces; tokens go with their pieces, or all with the last one."""
    texts = [(name, message[name]) for name in _TEXTS if isinstance(message.get(name), str) and message[name]]
    if len(texts) == 1 and with_tokens:
        name, text = texts[0]
        logprobs, ids = wire.mapping(with_tokens.get("logprobs")), with_tokens.get("token_ids")
        tokens = chunks.chat_tokens(logprobs)
        count = len(ids) if isinstance(ids, list) else None
        cut = chunks.aligned(text, tokens, count)
        if cut is not None:
            return [({name: piece}, _tokens_of(logprobs, ids, start, end, len(tokens))) for piece, start, end in cut]
    deltas: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, text in texts:
        deltas += [({name: piece}, {}) for piece in pieces.pieces(text)]
    if deltas and with_tokens:
        deltas[-1] = (deltas[-1][0], with_tokens)
    return deltas


def _tokens_of(logprobs: dict[str, Any], ids: Any, start: int, end: int, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"logprobs": chunks.cut_lists(logprobs, start, end, count)}
    if isinstance(ids, list):
        found["token_ids"] = ids[start:end]
    return found


def _calls(message: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each tool call: first all but its arguments, then these in pieces."""
    for index, call in enumerate(wire.objects(message.get("tool_calls"))):
        kind = "custom" if isinstance(call.get("custom"), dict) else "function"
        said = "input" if kind == "custom" else "arguments"
        inner = wire.mapping(call.get(kind))
        text = inner.get(said)
        opening = {**call, "index": index}
        if isinstance(text, str):
            opening[kind] = {**inner, said: ""}
        yield {"tool_calls": [opening]}, {}
        for piece in pieces.pieces(text) if isinstance(text, str) else ():
            yield {"tool_calls": [{"index": index, kind: {said: piece}}]}, {}


FAMILY = Chat()
