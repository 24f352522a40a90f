"""What comparison looks at in a choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise.core.families import wire
from samewise.core.families.contract import Output

_ID = "token_id:"
_THOUGHT = "</think>"


def chat_output(choice: Mapping[str, Any], position: int) -> Output:
    """A choice of chat: reasoning (if any), content and refusal are its text, in this order."""
    message = wire.mapping(choice.get("message"))
    reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    text = (reasoning + _THOUGHT if reasoning else "") + _text(message.get("content")) + _text(message.get("refusal"))
    content = wire.mapping(choice.get("logprobs")).get("content")
    items = wire.objects(content) if isinstance(content, list) else []
    tokens, logprobs, candidates = token_logprobs(items)
    calls = wire.objects(message.get("tool_calls"))
    if isinstance(message.get("function_call"), dict):
        calls = [*calls, {"type": "function", "function": message["function_call"]}]
    return Output(
        index=_index(choice, position),
        text=text,
        tokens=tokens,
        token_ids=_ids(choice.get("token_ids"), tokens),
        tool_calls=tuple(without_identity(call) for call in calls),
        finish_reason=choice.get("finish_reason"),
        logprobs=logprobs,
        candidates=candidates,
    )


def text_output(choice: Mapping[str, Any], position: int) -> Output:
    """A choice of text completions."""
    told = wire.mapping(choice.get("logprobs"))
    tokens, chosen, alternatives = (told.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    names: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    candidates: tuple[dict[str, float], ...] | None = None
    if isinstance(tokens, list) and isinstance(chosen, list) and tokens and len(tokens) == len(chosen):
        names = tuple(map(str, tokens))
        logprobs = tuple(_float(value) for value in chosen)
        tops = (
            alternatives if isinstance(alternatives, list) and len(alternatives) == len(tokens) else [{}] * len(tokens)
        )
        candidates = tuple(
            {**{name: _float(value) for name, value in wire.mapping(top).items()}, token: logprob}
            for top, token, logprob in zip(tops, names, logprobs, strict=True)
        )
    return Output(
        index=_index(choice, position),
        text=_text(choice.get("text")),
        tokens=names,
        token_ids=_ids(choice.get("token_ids"), names),
        finish_reason=choice.get("finish_reason"),
        logprobs=logprobs,
        candidates=candidates,
    )


def token_logprobs(
    items: list[dict[str, Any]],
) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None, tuple[dict[str, float], ...] | None]:
    """Tokens, their log-probabilities and the candidates at each position; three times None where there are none.

    `items` are `{"token", "logprob", "top_logprobs"}`, one a token.
    """
    if not items:
        return None, None, None
    tokens = tuple(_text(item.get("token")) for item in items)
    logprobs = tuple(_float(item.get("logprob")) for item in items)
    candidates = []
    for item, token, logprob in zip(items, tokens, logprobs, strict=True):
        known: dict[str, float] = {}
        for top in wire.objects(item.get("top_logprobs")):
            name = _text(top.get("token"))
            known[name] = max(known.get(name, float("-inf")), _float(top.get("logprob")))
        known.setdefault(token, logprob)
        candidates.append(known)
    return tokens, logprobs, tuple(candidates)


def without_identity(call: dict[str, Any]) -> dict[str, Any]:
    """A call without its id, which is new in every answer."""
    return {name: value for name, value in call.items() if name not in ("id", "index", "call_id", "status")}


def _named_ids(tokens: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Ids that tokens are named by where the caller asked for that."""
    if not tokens or not all(token.startswith(_ID) and token[len(_ID) :].isdecimal() for token in tokens):
        return None
    return tuple(int(token[len(_ID) :]) for token in tokens)


def _ids(value: Any, tokens: tuple[str, ...] | None) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return _named_ids(tokens)


def _index(choice: Mapping[str, Any], position: int) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else position


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
