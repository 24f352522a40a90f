"""A request on its way: what the door handed over, and what it means."""

from __future__ import annotations

from typing import Any

import msgspec

from samewise.core.answer import Headers
from samewise.core.controls import Controls
from samewise.core.families.contract import Family
from samewise.core.plan import Plan
from samewise.ports import Trace


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the door hands it over: `value` is the parsed `raw` body; names of `headers` are lower case."""

    family: Family
    raw: bytes
    value: dict[str, Any]
    headers: Headers
    controls: Controls
    tenant: str
    trace: Trace | None = None
    query: str = ""


class Asked(msgspec.Struct, frozen=True):
    """A request and its plan: they travel together."""

    ask: Ask
    plan: Plan

    @property
    def family(self) -> Family:
        """The API that it speaks."""
        return self.ask.family
