"""`/v1/completions`: a list of prompts is as many questions, answered in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer, Event
from samewise.core.families import alone, choices, chunks, merge, pieces, wire
from samewise.core.families.contract import Output
from samewise.core.families.outputs import text_output
from samewise.core.reason import Reason

_EVERY_CHUNK = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_MERGED = frozenset({"index", "text", "logprobs", "token_ids"})
_FIRST_CHUNK = frozenset({"prompt_token_ids", "prompt_logprobs"})


class Completions:
    """Prompts in, choices with a text each out. Choice i of prompt u has the index u*n + i."""

    name = "completions"
    path = "/v1/completions"
    delivery = choices.DELIVERY
    sampled = True
    seeded = True
    together = False

    batch = staticmethod(alone.batch)
    unbatch = staticmethod(alone.unbatch)
    ends = staticmethod(choices.ends)
    cut = staticmethod(choices.cut)
    noise = staticmethod(wire.is_noise)
    visible = staticmethod(choices.visible)
    usage = staticmethod(choices.usage)
    upstream_stream = staticmethod(choices.upstream_stream)

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """Only what points at another server's memory: a prompt is text or tokens."""
        return Reason.STATEFUL if any(body.get(name) for name in choices.TRANSFERS) else None

    def split(self, body: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """One request a prompt (texts, token lists, or both mixed); the body itself where there is one."""
        prompts = body.get("prompt")
        if body.get("prompt_embeds") is not None or not isinstance(prompts, list) or len(prompts) < 2:
            return [body]
        if not all(isinstance(prompt, str) or _is_tokens(prompt) for prompt in prompts):
            return [body]
        return [{**body, "prompt": prompt} for prompt in prompts]

    def join(self, answers: Sequence[Answer], requests: Sequence[dict[str, Any]]) -> Answer:
        """One body: id and time of the first, all choices renumbered, usage together."""
        if len(answers) == 1:
            return answers[0]
        bodies = [wire.load_object(self.to_body(answer)) for answer in answers]
        joined = dict(bodies[0])
        joined["choices"] = [
            {**choice, "index": choices.index_of(choice, at) + _offset(unit, request)}
            for unit, (body, request) in enumerate(zip(bodies, requests, strict=True))
            for at, choice in enumerate(wire.objects(body.get("choices")))
        ]
        if total := _together(answers):
            joined["usage"] = total
        return choices.as_json(answers[0], wire.dump(joined))

    def shift(self, event: Event, unit: int, request: Mapping[str, Any], like: Event | None = None) -> Event:
        """The chunk with its choices renumbered, and with the id and time of `like`."""
        chunk = wire.peek(event)
        if chunk is None or (unit == 0 and like is None):
            return event
        first = (wire.peek(like) if like is not None else None) or {}
        shared = {name: first[name] for name in ("id", "created") if name in first and name in chunk}
        offset = _offset(unit, request)
        found = [
            {**choice, "index": choices.index_of(choice) + offset} for choice in wire.objects(chunk.get("choices"))
        ]
        return wire.event({**chunk, **shared, "choices": found}, event.name)

    def closing(
        self, answers: Sequence[Answer], requests: Sequence[Mapping[str, Any]], include_usage: bool
    ) -> tuple[Event, ...]:
        """One usage chunk for all units where it was asked for and told, then `[DONE]`."""
        total = _together(answers) if include_usage else {}
        if not total:
            return (choices.done(),)
        body = wire.load_object(self.to_body(answers[0]))
        head = {name: body[name] for name in _EVERY_CHUNK if name in body}
        return wire.event({**head, "choices": [], "usage": total}), choices.done()

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, a choice too few or too many, one without an end, a stream without `[DONE]`."""
        return choices.failure(answer, choices.wanted(request) * len(self.split(dict(request))))

    def to_body(self, answer: Answer) -> bytes:
        """The chunks as one `text_completion`."""
        if answer.form == "json":
            return answer.body
        body = choices.fold(answer.events, _add)
        body.setdefault("object", "text_completion")
        body["choices"] = [{"index": choice["index"], "text": "", **choice} for choice in body["choices"]]
        return wire.dump(body)

    def to_events(self, answer: Answer) -> tuple[Event, ...]:
        """The text in pieces and a finish chunk for each choice, usage, `[DONE]`."""
        if answer.form == "sse":
            return answer.events
        body = wire.load_object(answer.body)
        head = {name: body[name] for name in _EVERY_CHUNK if name in body}
        rest = {name: value for name, value in body.items() if name not in head and name not in ("choices", "usage")}
        found: list[Event] = []
        for choice in wire.objects(body.get("choices")):
            for part in _parts(choice):
                found.append(wire.event({**head, "choices": [part], **rest}))
                rest = {}
        if body.get("usage") is not None:
            found.append(wire.event({**head, "choices": [], **rest, "usage": body["usage"]}))
        return (*found, choices.done())

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One a choice."""
        body = wire.load_object(self.to_body(answer))
        return [text_output(choice, at) for at, choice in enumerate(wire.objects(body.get("choices")))]


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


def _offset(unit: int, request: Mapping[str, Any]) -> int:
    return unit * choices.wanted(request)


def _together(answers: Sequence[Answer]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for answer in answers:
        choices.add_counts(total, choices.told_usage(answer))
    return total


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if isinstance(part.get("text"), str):
        choice["text"] = choice.get("text", "") + part["text"]
    choices.add_tokens(choice, part)
    merge.keep(choice, {name: value for name, value in part.items() if name not in _MERGED})


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The choice as the choices of consecutive chunks."""
    index = choices.index_of(choice)
    text = choice["text"] if isinstance(choice.get("text"), str) else ""
    at_start = {name: value for name, value in choice.items() if name in _FIRST_CHUNK}
    at_end = {name: value for name, value in choice.items() if name not in _MERGED and name not in at_start}
    with_tokens, empty = choices.tokens_of(choice)
    more = {**at_start, **empty}
    for piece, tokens in _cut(text, with_tokens):
        yield {"index": index, "text": piece, "logprobs": None, "finish_reason": None, **more, **tokens}
        more = {}
    yield {"index": index, "text": "", "logprobs": None, **more, **at_end}


def _cut(text: str, with_tokens: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Pieces of the text, each with its tokens; all tokens with the last one where they can't be told apart."""
    ids = with_tokens.get("token_ids")
    logprobs = wire.mapping(with_tokens.get("logprobs"))
    tokens = chunks.text_tokens(logprobs)
    cut = chunks.aligned(text, tokens, len(ids) if isinstance(ids, list) else None) if with_tokens else None
    if cut is not None:
        return [
            (
                piece,
                {
                    "logprobs": chunks.cut_lists(logprobs, start, end, len(tokens)),
                    **({"token_ids": ids[start:end]} if isinstance(ids, list) else {}),
                },
            )
            for piece, start, end in cut
        ]
    found: list[tuple[str, dict[str, Any]]] = [(piece, {}) for piece in pieces.pieces(text)]
    if with_tokens:
        found = [*found[:-1], (found[-1][0] if found else "", with_tokens)]
    return found


FAMILY = Completions()
