"""The environments that there are, for operators: who has each, which is active, and what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from samewise.core.difference import MISSING, Difference, differences
from samewise.core.fingerprint import INFORMATIVE, Environment
from samewise.pipeline.rollout import Rollout
from samewise.ports import Member


def describe(members: Sequence[Member], followed: Rollout) -> list[dict[str, Any]]:
    """Every environment that an upstream has, or that is active: the active ones first, ready for JSON.

    `differs` are the fields in which it is not like the active one (`{"field", "active"?, "here"?}`). Of an
    observed one, `seen` are the fields that say what it is, and `unseen` what could change without being noticed.
    """
    models = followed.models()
    active = {model: followed.active(model) for model in models}
    waiting = {model: followed.waiting(model) for model in models}
    known: dict[str, Environment] = {
        member.environment.id: member.environment for member in members if member.environment
    }
    known |= {chosen.id: chosen for chosen in active.values() if chosen is not None and chosen.id not in known}
    first = next((chosen for chosen in active.values() if chosen is not None), None)
    items = [_one(each, members, first) for each in known.values()]
    for item in items:
        identity = item["id"]
        item["active_for"] = [model for model, chosen in active.items() if chosen and chosen.id == identity]
        item["waiting_for"] = [model for model, other in waiting.items() if other and other.id == identity]
        item["active"] = bool(item["active_for"])
        trials = {model: followed.trial(identity, model) for model in models}
        item["trials"] = {model: msgspec.to_builtins(trial) for model, trial in trials.items() if trial is not None}
    return sorted(items, key=lambda item: not item["active"])


def told(environment: Environment, other: Environment) -> list[dict[str, Any]]:
    """The fields of the identity in which `environment` is not like `other`, the active one."""
    found = differences(_identity(other), _identity(environment), ordered=False)
    return [_field(each) for each in found]


def _one(environment: Environment, members: Sequence[Member], active: Environment | None) -> dict[str, Any]:
    having = [member for member in members if member.environment and member.environment.id == environment.id]
    item: dict[str, Any] = {
        "id": environment.id,
        "origin": environment.origin,
        "engine": environment.engine,
        "model": environment.model,
        "upstreams": [{"url": member.url, "healthy": member.healthy, "draining": member.draining} for member in having],
        "differs": [] if active is None or active.id == environment.id else told(environment, active),
        "manifest": environment.manifest,
    }
    if environment.origin == "observed":
        info = environment.manifest.get("info")
        about = info if isinstance(info, dict) else {}
        item["seen"] = sorted(name for name in environment.manifest if name not in INFORMATIVE | {"observed"})
        item["unseen"] = list(about.get("unseen") or ())
        item["probes"] = about.get("probes")
    return item


def _identity(environment: Environment) -> dict[str, Any]:
    return {name: value for name, value in environment.manifest.items() if name not in INFORMATIVE}


def _field(each: Difference) -> dict[str, Any]:
    sides = {"active": each.a, "here": each.b}
    return {"field": each.path} | {side: value for side, value in sides.items() if value is not MISSING}
