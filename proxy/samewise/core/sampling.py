"""Effective sampling: where each value comes from, and whether the answer can be had again.

A value is the request's, else the profile snapshot's, else the backend's generation default (manifest),
else the engine's documented default. `null` is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from samewise.core.canonical import normalise
from samewise.core.dialects import GREEDY_IGNORES, NEUTRAL, Dialect, dialect, member
from samewise.core.families.contract import Family
from samewise.core.plan import Context, Snapshot
from samewise.core.reason import Reason

REQUEST, MANIFEST, ENGINE, PIN = "request", "manifest", "engine", "pin"
"""Where a value comes from; a profile's is `NAME@N`."""

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_NULLABLE = frozenset({*NEUTRAL, "seed", "stop", "stop_token_ids", "logit_bias"})
_VOUCHED = "label"


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its sampling spelled out.

    `sent` is what goes upstream, in the client's order, what was added at its end. `omit` names members of
    it that the key leaves out, `extra` holds members that only the key has. `reason` says why it can't be
    cached; `unseeded` that nothing makes it repeatable, `seedable` that a seed would.
    `origins` covers every member of the key and of `sent`.
    """

    sent: dict[str, Any]
    omit: frozenset[str] = frozenset()
    extra: dict[str, Any] = {}
    origins: dict[str, str] = {}
    reason: Reason | None = None
    unseeded: bool = False
    seedable: bool = False


def with_profile(family: str, request: Mapping[str, Any], snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, str]]:
    """The request with the snapshot's values where it left them out, and where each member came from.

    A value whose member the request has under another name (`max_completion_tokens`) is left out.
    """
    sent = dict(request)
    origins = {name: REQUEST for name, value in sent.items() if value is not None}
    for name, value in snapshot.values.items():
        field = member(family, name)
        if value is None or sent.get(field) is not None:
            continue
        if name == "max_tokens" and any(sent.get(other) is not None for other in _LENGTHS):
            continue
        sent[field] = value
        origins[field] = snapshot.label()
    return sent, origins


def resolve(family: Family, request: Mapping[str, Any], context: Context) -> Effective:
    """The effective request of a sampled family, for a known environment (`context.environment` is not None).

    Defaults are spelled out only where they are known (`Environment.defaults` is there and usable): in the key always,
    in what is sent where the engine is known to read the field. Where they are unknown nothing is filled in,
    so that the answer is what the backend alone would give.

    Greedy requests to a known engine lose seed, top_p, top_k and min_p, in the key *and* in what is sent: the
    upstream then sees nothing that the key doesn't tell. A value that the engine would refuse stays, in both,
    so that its error still reaches the client.

    Reasons: UNSEEDED where temperature isn't 0 and no integer seed is given (an unknown temperature is never 0);
    UNKNOWN_DEFAULTS where defaults are unknown and sampling isn't greedy and temperature or top_p isn't spelled
    out, unless `context.assume_defaults` or an operator vouches for the environment (`label`). Greedy is fine
    without known defaults: what observes a backend asks it greedy probes, and so sees them change.
    """
    environment = context.environment
    if environment is None:
        raise ValueError("sampling can be resolved only for a known environment")
    sent, origins = with_profile(family.name, request, context.snapshot)
    known = dialect(environment.engine, family.name)
    extra: dict[str, Any] = {}
    defaults = _usable(environment.defaults)
    if defaults is not None:
        _fill_defaults(family.name, defaults, known, sent=sent, extra=extra, origins=origins)
    temperature = _value("temperature", sent, extra)
    if known is not None:
        _as_engine_reads(known, temperature, sent, extra)
        temperature = _value("temperature", sent, extra)
    greedy = is_zero(temperature)
    if greedy and known is not None:
        for name in GREEDY_IGNORES:
            extra.pop(name, None)
            if name in sent and (sent[name] is None or not validate({name: normalise(sent[name])})):
                del sent[name]
            if name not in sent:
                origins.pop(name, None)
    heard = family.seeded and (known is None or "seed" in known.fields)
    reproducible = greedy or (heard and seed_of(sent.get("seed")) is not None)
    certain = (
        defaults is not None
        or environment.origin == _VOUCHED
        or context.assume_defaults
        or greedy
        or (is_number(sent.get("temperature")) and is_number(sent.get("top_p")))
    )
    return Effective(
        sent=sent,
        omit=_omitted(known, sent),
        extra=extra,
        origins=origins,
        reason=None if certain else Reason.UNKNOWN_DEFAULTS,
        unseeded=not reproducible,
        seedable=heard and _no_seed(sent.get("seed")),
    )


def seed_of(value: object) -> int | None:
    """The seed that a member stands for; None for null, -1 (vLLM's word for none), booleans, 7.5, strings."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 2**53 else None
    return value if isinstance(value, int) and value != -1 else None


def is_number(value: object) -> bool:
    """True for JSON numbers; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_zero(value: object) -> bool:
    """True for the number 0, however it is spelled; never for null, false or absence."""
    return is_number(value) and value == 0


def _fill_defaults(
    family: str,
    manifest: Mapping[str, Any],
    known: Dialect | None,
    *,
    sent: dict[str, Any],
    extra: dict[str, Any],
    origins: dict[str, str],
) -> None:
    documented = known.defaults if known is not None else {}
    for name in {**NEUTRAL, **documented}:
        value, origin = (manifest[name], MANIFEST) if _told(manifest, name) else (documented.get(name), ENGINE)
        if value is None or sent.get(name) is not None:
            continue
        if name in _LENGTHS and name in sent:
            continue  # an explicit null lifts vLLM's limit of 16
        if known is not None and name in known.fields:
            sent[name] = value
        else:
            extra[name] = value
        origins[name] = origin
    limit = manifest.get("max_new_tokens")
    field = member(family, "max_tokens")
    if limit is not None and family != "completions" and all(sent.get(name) is None for name in _LENGTHS):
        extra[field] = limit
        origins[field] = MANIFEST


def _usable(defaults: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A backend's generation defaults; None where they aren't told, or one of them can be no such value."""
    told = {name: value for name, value in (defaults or {}).items() if name in NEUTRAL and value is not None}
    return None if validate(told) else defaults


def _told(manifest: Mapping[str, Any], name: str) -> bool:
    return name in NEUTRAL and manifest.get(name) is not None


def _as_engine_reads(known: Dialect, temperature: object, sent: dict[str, Any], extra: dict[str, Any]) -> None:
    low = known.least_temperature
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool) and 0 < temperature < low:
        (sent if sent.get("temperature") is not None else extra)["temperature"] = low
    if sent.get("top_k") == -1 and is_number(sent["top_k"]):
        sent["top_k"] = 0


def _omitted(known: Dialect | None, sent: Mapping[str, Any]) -> frozenset[str]:
    nulls = {name for name in _NULLABLE if name in sent and sent[name] is None}
    if "seed" in sent and _no_seed(sent["seed"]):
        nulls.add("seed")
    if known is not None:
        nulls |= {name for name, value in known.implied.items() if name in sent and _same(normalise(sent[name]), value)}
    return frozenset(nulls)


def _no_seed(value: object) -> bool:
    return value is None or (is_number(value) and value == -1)


def _same(first: object, second: object) -> bool:
    return type(first) is type(second) and first == second


def _value(name: str, sent: Mapping[str, Any], extra: Mapping[str, Any]) -> object:
    value = sent.get(name)
    return extra.get(name) if value is None else value


# --- what an operator may put into a profile -----------------------------------------------------------


def _finite(value: Any) -> bool:
    return is_number(value) and (isinstance(value, int) or math.isfinite(value))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(token, str) and token.isascii() and token.isdigit() and _finite(bias)
        for token, bias in value.items()
    )


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda v: _finite(v) and 0 <= v <= 2, "a number from 0 to 2"),
    "top_p": (lambda v: _finite(v) and 0 < v <= 1, "a number above 0, at most 1"),
    "top_k": (lambda v: _whole(v) and v >= -1, "a whole number: 1 or more, or 0 or -1 for no limit"),
    "min_p": (lambda v: _finite(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda v: _finite(v) and v > 0, "a number above 0"),
    "presence_penalty": (lambda v: _finite(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "frequency_penalty": (lambda v: _finite(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "seed": (lambda v: _whole(v) and -(2**63) <= v < 2**63, "a whole number from -2^63 to 2^63 - 1"),
    "max_tokens": (lambda v: _whole(v) and v >= 1, "a whole number, 1 or more"),
    "min_tokens": (lambda v: _whole(v) and v >= 0, "a whole number, 0 or more"),
    "n": (lambda v: _whole(v) and 1 <= v <= 16384, "a whole number from 1 to 16384"),
    "stop": (lambda v: (isinstance(v, str) and v != "") or _texts(v), "a text or a list of texts, none empty"),
    "stop_token_ids": (
        lambda v: isinstance(v, list) and all(_whole(i) and i >= 0 for i in v),
        "a list of token ids",
    ),
    "bad_words": (_texts, "a list of texts, none empty"),
    "logit_bias": (_bias, "an object of token ids and numbers"),
    "ignore_eos": (lambda v: isinstance(v, bool), "true or false"),
    "skip_special_tokens": (lambda v: isinstance(v, bool), "true or false"),
    "include_stop_str_in_output": (lambda v: isinstance(v, bool), "true or false"),
}

FIELDS: frozenset[str] = frozenset(_RULES)
"""What a sampling profile may set."""


def validate(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields of a profile that vLLM would refuse, each with what it should be; empty where all is well."""
    wrong: list[tuple[str, str]] = []
    for name, value in values.items():
        rule = _RULES.get(name)
        if rule is None:
            wrong.append((name, f"one of {', '.join(sorted(FIELDS))}"))
        elif not rule[0](value):
            wrong.append((name, rule[1]))
    if not wrong and "min_tokens" in values and "max_tokens" in values and values["min_tokens"] > values["max_tokens"]:
        wrong.append(("min_tokens", "at most max_tokens"))
    if not wrong and values.get("n", 1) > 1 and is_zero(values.get("temperature")):
        wrong.append(("n", "1 where temperature is 0: every choice would be the same"))
    return wrong
