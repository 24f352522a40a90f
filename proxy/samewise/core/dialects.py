"""What an engine is known to do with a request: its fields, their documented defaults, what it ignores."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
)
"""The values that a sampler of vLLM's kind has where nobody said otherwise."""

GREEDY_IGNORES = ("seed", "top_p", "top_k", "min_p")
"""What can't matter where the likeliest token is always taken: vLLM resets them (seeds draw nothing)."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's reading of one family.

    `fields`: sampling members that the engine reads in this family, so that they may be sent.
    `defaults`: documented defaults of the values that decide sampling. `implied`: members that say
    nothing where they have exactly this value; they need not be sent. `least_temperature`: what a
    smaller temperature than this, but not 0, is raised to.
    """

    fields: frozenset[str]
    defaults: Mapping[str, Any] = NEUTRAL
    implied: Mapping[str, Any] = MappingProxyType({})
    least_temperature: float = 0.0


_OPENAI = frozenset({*NEUTRAL, "seed"})
_IMPLIED = MappingProxyType(
    {
        "n": 1,
        "stop": [],
        "stop_token_ids": [],
        "logit_bias": {},
        "bad_words": [],
        "min_tokens": 0,
        "ignore_eos": False,
        "use_beam_search": False,
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
    }
)
_COMPLETIONS = MappingProxyType({**NEUTRAL, "max_tokens": 16})

_VLLM = MappingProxyType(
    {
        "chat": Dialect(fields=_OPENAI, implied=_IMPLIED, least_temperature=0.01),
        "completions": Dialect(
            fields=_OPENAI | {"max_tokens"}, defaults=_COMPLETIONS, implied=_IMPLIED, least_temperature=0.01
        ),
        "responses": Dialect(fields=_OPENAI, least_temperature=0.01),
        "messages": Dialect(fields=frozenset({"temperature", "top_p", "top_k"}), least_temperature=0.01),
    }
)
_REFERENCE = MappingProxyType(
    {
        "chat": Dialect(fields=_OPENAI, implied=MappingProxyType({"n": 1, "stop": []})),
        "completions": Dialect(
            fields=_OPENAI | {"max_tokens"},
            defaults=_COMPLETIONS,
            implied=MappingProxyType({"n": 1, "stop": []}),
        ),
    }
)
_ENGINES: Mapping[str, Mapping[str, Dialect]] = MappingProxyType({"vllm": _VLLM, "reference": _REFERENCE})

_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "responses": MappingProxyType({"max_tokens": "max_output_tokens"}),
        "messages": MappingProxyType({"stop": "stop_sequences"}),
    }
)


def dialect(engine: str, family: str) -> Dialect | None:
    """How the engine reads the family; None where that isn't known."""
    return _ENGINES.get(engine, {}).get(family)


def member(family: str, name: str) -> str:
    """What the family calls a sampling value (`max_tokens` is `max_output_tokens` to responses)."""
    return _NAMES.get(family, {}).get(name, name)
