"""Why a request has the key that it has, or none; what two requests differ in; what stored entry is nearest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from samewise.core import key as keys
from samewise.core.difference import MISSING, Difference, differences, join, similarity
from samewise.core.entry import Entry
from samewise.core.plan import Plan, Unit

OUTSIDE = ("tenant", "namespace", "family", "model", "environment", "epochs", "sample", "variant")
"""Parts of a key that are no member of the body, and where each comes from."""
_SOURCES = {
    "tenant": "api key",
    "namespace": "request",
    "family": "path",
    "model": "request",
    "environment": "backend",
    "epochs": "administrator",
    "sample": "request",
    "variant": "request",
}
_SHORT = 64
_PLAIN_MEMBERS = frozenset({"role", "type", "name", "id", "detail", "strict"})
_PROMPTS = frozenset(
    {
        "messages", "prompt", "input", "inputs", "system", "instructions", "documents", "query", "queries",
        "text_1", "text_2", "suffix", "tools", "functions", "prediction", "response_format", "text",
        "structured_outputs", "chat_template", "chat_template_kwargs",
    }
)  # fmt: skip
"""Members whose texts are never shown unless asked for."""


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """A stored entry like a request, how like (0 to 1), and what differs, ready for JSON."""

    key: str
    similarity: float
    differences: list[dict[str, Any]]


def explain(plan: Plan, *, full: bool = False) -> dict[str, Any]:
    """`{"key", "cacheable", "reason", "parts": {name: {"value", "from"}}, ...}`, ready for JSON.

    `parts` has what the key is made of, or would be. A member of the body that is named like one of the outer
    parts is shown as `body.NAME`. Texts of prompts, and long ones, are shown as their length and a digest unless
    `full`. A request of several units has the first one's key and parts here, and all of them under `units`.
    """
    told = [_explain_unit(plan, unit, full) for unit in plan.units]
    first = told[0]
    answer = {
        **first,
        "cacheable": all(unit["cacheable"] for unit in told),
        "family": plan.family,
        "model": plan.model,
        "snapshot": plan.context.snapshot.label(),
        "delivery": sorted(plan.delivery),
    }
    return {**answer, "units": told} if len(told) > 1 else answer


def diff(a: Plan, b: Plan, *, full: bool = False) -> list[dict[str, Any]]:
    """The parts in which the keys of two requests differ: `[{"path", "what", "a", "b"}]`, empty for the same keys.

    Paths are those of the body (`messages[1].content`), `what` says how (`character 17`, counted from 0).
    """
    found: list[Difference] = []
    if len(a.units) != len(b.units):
        found.append(Difference(path="units", what="value", a=len(a.units), b=len(b.units)))
    several = max(len(a.units), len(b.units)) > 1
    for index, (left, right) in enumerate(zip(a.units, b.units, strict=False)):
        if left.key is not None and left.key == right.key:
            continue
        prefix = f"unit {index}: " if several else ""
        outside = differences(_outside(a, left), _outside(b, right), ordered=False)
        inside = differences(_request(left), _request(right), ordered=False)
        found.extend(msgspec.structs.replace(each, path=prefix + each.path) for each in outside)
        found.extend(msgspec.structs.replace(each, path=prefix + _body_path(each.path)) for each in inside)
    return [_shown(each, full) for each in found]


def nearest(plan: Plan, entries: Iterable[Entry], *, full: bool = False) -> Nearest | None:
    """The entry most like the first unit of the plan, of the same tenant and family; None where there is none.

    Equal likeness: the younger entry. What was sent upstream is compared, and model, environment and sample.
    Entries whose `request` is no JSON object are passed over.
    """
    unit = plan.units[0]
    asked = _comparable(plan.model, _environment(plan), plan.controls.sample, unit.request)
    best: tuple[float, float, Entry, dict[str, Any]] | None = None
    for entry in entries:
        if entry.tenant != plan.context.tenant or entry.family != plan.family:
            continue
        try:
            request = json.loads(entry.request.decode("utf-8", "surrogatepass"))
        except ValueError:
            continue
        if not isinstance(request, dict):
            continue
        stored = _comparable(entry.model, entry.environment, entry.sample, request)
        rank = (similarity(asked, stored), entry.created)
        if best is None or rank > best[:2]:
            best = (*rank, entry, stored)
    if best is None:
        return None
    alike, _, entry, stored = best
    found = list(differences(asked["about"], stored["about"], ordered=False))
    inside = differences(asked["request"], stored["request"], ordered=False)
    found.extend(msgspec.structs.replace(each, path=_body_path(each.path)) for each in inside)
    return Nearest(key=entry.key, similarity=alike, differences=[_shown(each, full) for each in found])


def _explain_unit(plan: Plan, unit: Unit, full: bool) -> dict[str, Any]:
    parts = {name: {"value": value, "from": _SOURCES[name]} for name, value in _outside(plan, unit).items()}
    for name, value in _request(unit).items():
        shown = value if full else _brief(value, name in _PROMPTS)
        parts[_body_path(name)] = {"value": shown, "from": unit.origins.get(name, "request")}
    told: dict[str, Any] = {
        "key": unit.key,
        "cacheable": unit.key is not None,
        "reason": None if unit.reason is None else str(unit.reason),
        "parts": parts,
    }
    if unit.pinned:
        told["seed"] = unit.seed
    return told


def _outside(plan: Plan, unit: Unit) -> dict[str, Any]:
    if unit.preimage:
        told = keys.parts(unit.preimage)
        return {name: told[name] for name in OUTSIDE if name in told}
    return {
        "tenant": plan.context.tenant,
        "namespace": plan.controls.namespace,
        "family": plan.family,
        "model": plan.model,
        "environment": _environment(plan),
        "epochs": msgspec.structs.asdict(plan.context.epochs),
        "sample": plan.controls.sample,
    }


def _request(unit: Unit) -> dict[str, Any]:
    if unit.preimage:
        request: dict[str, Any] = keys.parts(unit.preimage)["request"]
        return request
    return {name: value for name, value in unit.request.items() if name != "model"}


def _environment(plan: Plan) -> str:
    return "" if plan.context.environment is None else plan.context.environment.id


def _comparable(model: str, environment: str, sample: int, request: Mapping[str, Any]) -> dict[str, Any]:
    inside = {name: value for name, value in request.items() if name != "model"}
    return {"about": {"model": model, "environment": environment, "sample": sample}, "request": inside}


def _body_path(path: str) -> str:
    head = path.split(".", 1)[0].split("[", 1)[0]
    return join("body", head) + path[len(head) :] if head in OUTSIDE else path


def _shown(each: Difference, full: bool) -> dict[str, Any]:
    inner = each.path.rsplit(": ", 1)[-1].removeprefix("body.")
    prompt = inner.split(".", 1)[0].split("[", 1)[0] in _PROMPTS
    last = inner.rsplit(".", 1)[-1]
    told: dict[str, Any] = {"path": each.path, "what": each.what}
    for side, value in (("a", each.a), ("b", each.b)):
        if value is not MISSING:
            plain = full or each.what == "order"
            told[side] = value if plain else _brief(value, prompt and last not in _PLAIN_MEMBERS)
    return told


def _brief(value: Any, prompt: bool) -> Any:
    match value:
        case str() if prompt or len(value) > _SHORT:
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
            return {"characters": len(value), "sha256": digest[:16]}
        case dict():
            return {name: _brief(item, prompt and name not in _PLAIN_MEMBERS) for name, item in value.items()}
        case list() if len(value) > _SHORT and not any(isinstance(item, (dict, list)) for item in value):
            digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()
            return {"items": len(value), "sha256": digest[:16]}
        case list():
            return [_brief(item, prompt) for item in value]
        case _:
            return value
