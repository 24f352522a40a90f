"""The questions of the acceptance: short, and with close calls among them, where rounding may decide.

Close calls: sentences that can be read in two ways, lists in which any item may come next, coins and digits,
words with equal spellings. Which of them are close for a model shows in the gaps that a report tells.
Half are greedy; half are sampled at 0.7 with a seed, where every token is a close call of a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

TOKENS = 24
_SEED = 20_240_607


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `body` is the request without `model` and without what a run adds."""

    name: str
    family: Literal["chat", "completions"]
    body: dict[str, Any]


_TEXTS = {
    "telescope": "I saw the man on the hill with the telescope. The telescope belonged to",
    "bank": "She waited at the bank until noon because the",
    "flies": "Time flies like an arrow; fruit flies like",
    "trophy": "The trophy didn't fit into the suitcase because it was too",
    "coin": "A fair coin was tossed eight times. The results, H or T, were: H T T H",
    "digits": "Random digits: 7, 3, 9, 1, 4, 4, 0,",
    "list": "red, blue, green, red, green, blue, blue, red, green,",
    "names": "The three friends were called Ann, Bob and",
    "equal": "Both answers are equally good. I would choose the",
    "repeat": "yes no yes no no yes yes no yes no no yes",
}
_CHATS = {
    "synonym": ("Answer with one word.", "Name a synonym of 'big' or of 'large', whichever you like better."),
    "either": ("You decide quickly.", "Tea or coffee? Left or right? Odd or even? Give one word for each."),
    "rewrite": ("You are an editor.", "Rewrite in your own words: The old man the boat, the young row it."),
    "number": ("You think of numbers.", "Think of a number between 1 and 100 and tell me only the number."),
}


def shipped() -> tuple[Prompt, ...]:
    """All questions, each greedy and each sampled with a seed."""
    found: list[Prompt] = []
    for name, text in _TEXTS.items():
        found += _both(name, "completions", {"prompt": text})
    for name, (system, user) in _CHATS.items():
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        found += _both(name, "chat", {"messages": messages})
    return tuple(found)


def read(value: Any) -> tuple[Prompt, ...]:
    """Questions of a user: a list of texts, or of bodies with `prompt` or `messages` (and `name`, where wanted).

    A body keeps its own sampling values; without a seed and a temperature it is greedy. Raises ValueError.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("prompts should be a JSON list of texts, or of objects with prompt or messages")
    return tuple(_one(item, number) for number, item in enumerate(value, start=1))


def _one(item: Any, number: int) -> Prompt:
    if isinstance(item, str):
        return Prompt(name=f"prompt-{number}", family="completions", body=_greedy({"prompt": item}))
    if not isinstance(item, Mapping) or ("prompt" in item) == ("messages" in item):
        raise ValueError(f"prompt {number} should be a text, or an object with either prompt or messages")
    body = {name: given for name, given in item.items() if name not in {"name", "model", "stream"}}
    if body.get("n", 1) != 1 or isinstance(body.get("prompt"), list):
        raise ValueError(f"prompt {number} should ask for one answer to one prompt")
    if "temperature" not in body:
        body = _greedy(body)
    elif body["temperature"] and body.get("seed") is None:
        raise ValueError(f"prompt {number} has a temperature and no seed: no two answers need to agree")
    family: Literal["chat", "completions"] = "chat" if "messages" in item else "completions"
    return Prompt(name=str(item.get("name", f"prompt-{number}")), family=family, body={"max_tokens": TOKENS, **body})


def _both(name: str, family: Literal["chat", "completions"], question: Mapping[str, Any]) -> Sequence[Prompt]:
    seeded = {"max_tokens": TOKENS, "temperature": 0.7, "seed": _SEED}
    return (
        Prompt(name=name, family=family, body=_greedy(question)),
        Prompt(name=f"{name}-seeded", family=family, body={**question, **seeded}),
    )


def _greedy(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_tokens": TOKENS, **body, "temperature": 0}
