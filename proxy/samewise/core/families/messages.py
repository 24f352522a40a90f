"""`/v1/messages`, Anthropic's API. It has no seed: only temperature 0 is reproducible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samewise.core.answer import Answer, Event, Usage
from samewise.core.families import alone, choices, media, typed, wire
from samewise.core.families.contract import Output
from samewise.core.families.message_events import to_body, to_events
from samewise.core.families.outputs import without_identity
from samewise.core.reason import Reason

_END = frozenset({"message_stop", "error"})
_OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
_TEXTS = ("thinking", "text")


class Messages:
    """Messages in, one message of content blocks out."""

    name = "messages"
    path = "/v1/messages"
    delivery = frozenset({"stream", "metadata", "request_id", "priority"})
    sampled = True
    seeded = False
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
        """Containers, MCP servers, tools that the server runs, files that it keeps; media by URL."""
        if any(body.get(name) for name in ("container", "mcp_servers", *choices.TRANSFERS)):
            return Reason.STATEFUL
        if any(not _is_own(tool) for tool in wire.objects(body.get("tools"))):
            return Reason.STATEFUL
        for message in ({"content": body.get("system")}, *wire.objects(body.get("messages"))):
            reason = media.refusal(message.get("content"))
            if reason is not None:
                return reason
        return None

    def upstream_stream(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as a stream; it tells the usage unasked."""
        return {**body, "stream": True}

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """An error, a message without a stop reason, a stream without `message_stop` or with a block left open.

        `pause_turn` is no end: the server waits to be asked to go on.
        """
        try:
            kinds: list[str] = []
            if answer.form == "sse":
                for kind, value in typed.values(answer.events):
                    if kind == "error" or value.get("error"):
                        return Reason.UPSTREAM_ERROR
                    kinds.append(kind)
            message = wire.load_object(self.to_body(answer))
        except ValueError:
            return Reason.TRUNCATED
        if choices.has_error(message):
            return Reason.UPSTREAM_ERROR
        if answer.form == "sse":
            opened, closed = (kinds.count(f"content_block_{word}") for word in ("start", "stop"))
            if not kinds or kinds[0] != "message_start" or kinds[-1] != "message_stop" or opened != closed:
                return Reason.TRUNCATED
        return None if message.get("stop_reason") not in (None, "", "pause_turn") else Reason.TRUNCATED

    def ends(self, event: Event) -> bool:
        """True for `message_stop`, and for an error."""
        return choices.ends(event) or typed.is_kind(event, _END)

    def cut(self, message: str) -> Event:
        """An `error` event, as Anthropic's API has it."""
        error = {"type": "api_error", "message": message}
        return wire.event({"type": "error", "error": error}, "error")

    def to_events(self, answer: Answer) -> tuple[Event, ...]:
        """From `message_start` to `message_stop`, each block's text or input in pieces."""
        return answer.events if answer.form == "sse" else to_events(wire.load_object(answer.body))

    def to_body(self, answer: Answer) -> bytes:
        """The events as one message. Raises ValueError where a tool's input is no JSON."""
        return answer.body if answer.form == "json" else wire.dump(to_body(typed.values(answer.events)))

    def usage(self, answer: Answer) -> Usage:
        """The tokens that the message tells; what was read from or written to the prefix cache is prompt too."""
        counts = wire.mapping(self._message(answer).get("usage"))
        read, written = (wire.number(counts.get(f"cache_{way}_input_tokens")) for way in ("read", "creation"))
        return Usage(
            prompt_tokens=wire.number(counts.get("input_tokens")) + read + written,
            completion_tokens=wire.number(counts.get("output_tokens")),
            cached_tokens=read,
        )

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """One: thinking and text in order, tool uses, and why it stopped."""
        message = self._message(answer)
        blocks = wire.objects(message.get("content"))
        texts = [block[name] for block in blocks for name in _TEXTS if isinstance(block.get(name), str)]
        calls = [without_identity(block) for block in blocks if block.get("type") not in _TEXTS]
        stop = [text for text in (message.get("stop_reason"), message.get("stop_sequence")) if isinstance(text, str)]
        return [Output(index=0, text="\n".join(texts), tool_calls=tuple(calls), finish_reason=": ".join(stop) or None)]

    def _message(self, answer: Answer) -> dict[str, Any]:
        try:
            return wire.load_object(self.to_body(answer))
        except ValueError:
            return {}


def _is_own(tool: Mapping[str, Any]) -> bool:
    """True for a tool that the caller runs."""
    kind = tool.get("type")
    return kind in (None, "custom") or (isinstance(kind, str) and kind.startswith(_OWN_TOOLS))


FAMILY = Messages()
