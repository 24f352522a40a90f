"""What rerank and score share: documents in, numbers out, one question each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise.core.answer import Answer, Usage
from samewise.core.families import choices, media, wire
from samewise.core.families.contract import Output
from samewise.core.reason import Reason

DELIVERY = frozenset({"user", "metadata", "safety_identifier", "request_id", "priority"})


def refusal(body: Mapping[str, Any], names: tuple[str, ...]) -> Reason | None:
    """Remote media in any of the members that carry content."""
    return next((reason for name in names if (reason := media.refusal(body.get(name))) is not None), None)


def length(value: Any) -> int:
    """Documents in a member of a request: a list of them, an object with a list of parts, or one text."""
    if isinstance(value, dict):
        value = value.get("content")
    return len(value) if isinstance(value, list) else 1


def failure(answer: Answer, member: str, number: str, count: int) -> Reason | None:
    """An error, a number too few or too many, or something that is none."""
    try:
        body = wire.load_object(answer.body)
    except ValueError:
        return Reason.TRUNCATED
    if choices.has_error(body):
        return Reason.UPSTREAM_ERROR
    found = wire.objects(body.get(member))
    whole = len(found) == count and all(isinstance(item.get(number), int | float) for item in found)
    return None if whole else Reason.TRUNCATED


def outputs(answer: Answer, member: str, number: str) -> list[Output]:
    """One a document, in the order of the documents."""
    found = wire.objects(wire.load_object(answer.body).get(member))
    scores = [
        Output(index=choices.index_of(item, at), text="", vector=(float(item[number]),))
        for at, item in enumerate(found)
        if isinstance(item.get(number), int | float)
    ]
    return sorted(scores, key=lambda output: output.index)


def usage(answer: Answer) -> Usage:
    """The tokens that were read; some servers tell their total only."""
    counts = choices.told_usage(answer)
    return Usage(prompt_tokens=wire.number(counts.get("prompt_tokens")) or wire.number(counts.get("total_tokens")))
