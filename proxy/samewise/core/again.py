"""How a recorded request is asked again: the same question, past every prefix cache or not, with more to compare by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from samewise.core import body as bodies
from samewise.core import salt
from samewise.core.answer import Headers
from samewise.core.entry import Entry
from samewise.core.families.contract import Family

VARIANT = "variant"
"""The member of `Entry.extra` that has what beside the body decided the answer (`Controls.variant`)."""
ALTERNATIVES = 20
"""Candidates asked for at each token: as many as servers give."""
_QUERY = "?"


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for beside the answer: log-probabilities of tokens and their rivals, token ids, a cold start."""

    logprobs: bool = True
    token_ids: bool = True
    salt: bool = True


TRIED = (
    Extras(),
    Extras(token_ids=False),
    Extras(token_ids=False, salt=False),
    Extras(logprobs=False, token_ids=False),
    Extras(logprobs=False, token_ids=False, salt=False),
)
"""From the most to the least that a server may take; the request itself is the last."""


def both(one: Extras, other: Extras) -> Extras:
    """What both ask for."""
    return Extras(
        logprobs=one.logprobs and other.logprobs,
        token_ids=one.token_ids and other.token_ids,
        salt=one.salt and other.salt,
    )


def body(family: Family, entry: Entry, extras: Extras, prefix: str) -> bytes:
    """The body that asks for the entry's answer again, in the form in which it was recorded.

    `prefix`: the `cache_salt` to send; where it is empty the request keeps its own, if it has one. Raises
    ValueError where the entry's request can't be read.
    """
    asked = request(entry)
    if extras.logprobs:
        asked = _with_logprobs(family.name, asked)
    if extras.token_ids and family.name in {"chat", "completions"}:
        asked["return_token_ids"] = True
        if any(output.token_ids is not None for output in family.outputs(entry.answer)):
            asked["return_tokens_as_token_ids"] = True
    if extras.salt and prefix:
        asked[salt.MEMBER] = prefix
    if entry.answer.form == "sse":
        asked = family.upstream_stream({**asked, "stream": True})
    return bodies.write(asked)


def request(entry: Entry) -> dict[str, Any]:
    """The effective request. Raises ValueError."""
    asked = json.loads(entry.request.decode("utf-8", "surrogatepass"))
    if not isinstance(asked, dict):
        raise ValueError(f"the request of {entry.key} is no object")
    return asked


def path(family: Family, entry: Entry) -> str:
    """The path that it was asked at, with its query."""
    return family.path + "".join(f"?{value}" for name, value in variant(entry) if name == _QUERY)


def fields(entry: Entry) -> Headers:
    """The header fields to send: those that choose an API's behaviour, and what a body needs."""
    chosen = tuple((name, value) for name, value in variant(entry) if name != _QUERY)
    accept = "text/event-stream" if entry.answer.form == "sse" else "application/json"
    return (("content-type", "application/json"), ("accept", accept), *chosen)


def variant(entry: Entry) -> tuple[tuple[str, str], ...]:
    """What beside the body decided the answer."""
    told = entry.extra.get(VARIANT)
    if not isinstance(told, list | tuple):
        return ()
    return tuple((str(name), str(value)) for name, value in told)


def _with_logprobs(family: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    match family:
        case "chat":
            most = max(_number(asked.get("top_logprobs")), ALTERNATIVES)
            return {**asked, "logprobs": True, "top_logprobs": most}
        case "completions":
            return {**asked, "logprobs": max(_number(asked.get("logprobs")), ALTERNATIVES)}
        case _:
            return dict(asked)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
