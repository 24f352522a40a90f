"""The one path of a request: understand it, find or fetch its answer, give it."""

from __future__ import annotations

import xxhash

from samewise.core import canonical, request
from samewise.core.plan import Plan
from samewise.pipeline import reply
from samewise.pipeline.account import Marks
from samewise.pipeline.ask import Ask, Asked
from samewise.pipeline.control import Control
from samewise.pipeline.resolve import Resolver
from samewise.pipeline.several import Several
from samewise.pipeline.source import Reply
from samewise.ports import Clock


class Answerer:
    """Answers requests of the cached families."""

    def __init__(self, *, control: Control, resolver: Resolver, clock: Clock) -> None:
        self._control = control
        self._resolver = resolver
        self._several = Several(resolver=resolver, clock=clock)
        self._clock = clock

    def plan(self, ask: Ask) -> Plan:
        """What the request means now. Raises ProxyError where it can't be read."""
        model = ask.value.get("model")
        context = self._control.context(
            ask.tenant,
            model if isinstance(model, str) else "",
            lambda: xxhash.xxh3_128_digest(canonical.encode(ask.value)),
        )
        return request.plan(ask.family, ask.raw, ask.controls, context, parsed=ask.value)

    async def answer(self, ask: Ask, marks: Marks) -> Reply:
        """The reply to one request. Raises ProxyError where there is none to give."""
        plan = self.plan(ask)
        asked = Asked(ask, plan)
        marks.model, marks.stream = plan.model, plan.stream
        marks.snapshot = plan.context.snapshot.label()
        if plan.context.environment is not None:
            marks.environment = plan.context.environment.id
        if len(plan.units) > 1:
            return await self._several.answer(asked, marks)
        unit = plan.units[0]
        marks.key = unit.key
        marks.seed = unit.seed if unit.pinned else None
        source = await self._resolver.resolve(asked, unit, marks)
        return await reply.make(ask.family, plan, source, marks, self._clock)
