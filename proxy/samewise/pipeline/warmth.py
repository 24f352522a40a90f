"""Where the prefixes of a request's prompts are warm, for explanations."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from samewise.core.plan import Plan, Unit
from samewise.core.route import prompt_prefix
from samewise.ports import Call, Prefixes


def explained(prefixes: Prefixes, plan: Plan) -> list[dict[str, Any] | None]:
    """A `ports.Warmth` for each unit of the plan, ready for JSON. Asks no upstream."""
    return [msgspec.to_builtins(prefixes.warmth(_call(plan, unit))) for unit in plan.units]


def _call(plan: Plan, unit: Unit) -> Call:
    environment = plan.context.environment
    return Call(
        method="POST",
        path=plan.path,
        model=plan.model,
        environment=environment.id if environment is not None else None,
        route=functools.partial(prompt_prefix, unit.request, plan.context.salt),
    )
