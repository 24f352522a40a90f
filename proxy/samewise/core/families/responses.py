"""`/v1/responses`. The answer repeats `metadata`, `user` and the like, so they are part of the key here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer, Event, Usage
from samewise.core.families import alone, choices, media, typed, wire
from samewise.core.families.contract import Output
from samewise.core.families.outputs import token_logprobs, without_identity
from samewise.core.families.response_events import to_events
from samewise.core.reason import Reason

_END = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_STATE = ("previous_response_id", "conversation", "background", "background_options", "prompt", "store")
_OWN_TOOLS = frozenset(
    {"function", "custom", "namespace", "local_shell", "apply_patch", "computer", "computer_use_preview"}
)
_REMEMBERED = frozenset({"item_reference", "mcp_approval_response"})
_WHOLE = "max_output_tokens"


class Responses:
    """Input items in, output items out; streams are typed events and end with the whole response."""

    name = "responses"
    path = "/v1/responses"
    delivery = frozenset({"stream", "stream_options", "request_id", "priority"})
    sampled = True
    seeded = True
    together = False

    split = staticmethod(alone.split)
    batch = staticmethod(alone.batch)
    unbatch = staticmethod(alone.unbatch)
    join = staticmethod(alone.join)
    shift = staticmethod(alone.shift)
    closing = staticmethod(alone.closing)
    noise = staticmethod(wire.is_noise)
    visible = staticmethod(alone.all_visible)

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """State that the server keeps or is asked to keep; tools that it runs; remote media.

        An absent `store` is no state: nothing refers to it. `store: true` asks for a response that can be
        referred to, which a recorded answer is not.
        """
        if any(body.get(name) for name in (*_STATE, *choices.TRANSFERS)):
            return Reason.STATEFUL
        if any(not _is_own(tool) for tool in wire.objects(body.get("tools"))):
            return Reason.STATEFUL
        for item in wire.objects(body.get("input")):
            if item.get("type") in _REMEMBERED or _is_bare(item):
                return Reason.STATEFUL
            reason = media.refusal(item)
            if reason is not None:
                return reason
        return None

    def upstream_stream(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as a stream; its last event tells the usage unasked."""
        return {**body, "stream": True}

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, a response that failed or is not over, a stream without its last event.

        One that ended at `max_output_tokens` is whole: the caller asked for no more.
        """
        try:
            if answer.form == "json":
                return _failure(wire.load_object(answer.body))
            last: tuple[str, dict[str, Any]] = ("", {})
            for kind, value in typed.values(answer.events):
                if kind in ("error", "response.failed") or value.get("error"):
                    return Reason.UPSTREAM_ERROR
                last = kind, value
        except ValueError:
            return Reason.TRUNCATED
        return _failure(wire.mapping(last[1].get("response"))) if last[0] in _END else Reason.TRUNCATED

    def ends(self, event: Event) -> bool:
        """True for the event that carries the whole response, and for an error."""
        return choices.ends(event) or typed.is_kind(event, _END)

    def cut(self, message: str) -> Event:
        """An `error` event; its number is the first one's, since those before it may have none."""
        error = {"code": "upstream_truncated", "message": message, "param": None, "sequence_number": 0}
        return wire.event({"type": "error", **error}, "error")

    def to_events(self, answer: Answer) -> tuple[Event, ...]:
        """Created, in progress, every item with its parts and texts in pieces, and the whole response."""
        return answer.events if answer.form == "sse" else to_events(wire.load_object(answer.body))

    def to_body(self, answer: Answer) -> bytes:
        """The response that the last event carries, its output filled from the items where it carries none."""
        if answer.form == "json":
            return answer.body
        response: dict[str, Any] = {}
        items: dict[int, Any] = {}
        for kind, value in typed.values(answer.events):
            if isinstance(value.get("response"), dict):
                response = value["response"]
            elif kind == "response.output_item.done":
                items[wire.number(value.get("output_index"))] = value.get("item")
        if items and not response.get("output"):
            response = {**response, "output": [items[index] for index in sorted(items)]}
        return wire.dump(response)

    def usage(self, answer: Answer) -> Usage:
        """The tokens that the response tells, zeros where it tells none."""
        counts = wire.mapping(self._response(answer).get("usage"))
        return Usage(
            prompt_tokens=wire.number(counts.get("input_tokens")),
            completion_tokens=wire.number(counts.get("output_tokens")),
            cached_tokens=wire.number(wire.mapping(counts.get("input_tokens_details")).get("cached_tokens")),
        )

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One: the texts of all items in order, their calls, and how the response ended."""
        response = self._response(answer)
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        for item in wire.objects(response.get("output")):
            parts = [*wire.objects(item.get("summary")), *wire.objects(item.get("content"))]
            if item.get("type") in ("message", "reasoning"):
                texts.append("".join(_text(part) for part in parts))
                told += [each for part in parts for each in wire.objects(part.get("logprobs"))]
            else:
                calls.append(without_identity(item))
        tokens, logprobs, candidates = token_logprobs(told)
        reason = wire.mapping(response.get("incomplete_details")).get("reason")
        return [
            Output(
                index=0,
                text="\n".join(texts),
                tokens=tokens,
                tool_calls=tuple(calls),
                finish_reason=reason or response.get("status"),
                logprobs=logprobs,
                candidates=candidates,
            )
        ]

    def _response(self, answer: Answer) -> dict[str, Any]:
        try:
            return wire.load_object(self.to_body(answer))
        except ValueError:
            return {}


def _failure(response: Mapping[str, Any]) -> Reason | None:
    status = response.get("status")
    if response.get("error") or status in ("failed", "cancelled") or choices.has_error(response):
        return Reason.UPSTREAM_ERROR
    reason = wire.mapping(response.get("incomplete_details")).get("reason")
    whole = status == "completed" or (status == "incomplete" and reason == _WHOLE)
    return None if whole else Reason.TRUNCATED


def _is_own(tool: Mapping[str, Any]) -> bool:
    """True for a tool that the caller runs."""
    if tool.get("type") == "shell":
        return wire.mapping(tool.get("environment")).get("type") == "local"
    return tool.get("type", "function") in _OWN_TOOLS


def _is_bare(item: Mapping[str, Any]) -> bool:
    """True for reasoning that is only named, so that its content lies with the server."""
    said = any(item.get(name) for name in ("content", "summary", "encrypted_content"))
    return item.get("type") == "reasoning" and bool(item.get("id")) and not said


def _text(part: Mapping[str, Any]) -> str:
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else ""


FAMILY = Responses()
