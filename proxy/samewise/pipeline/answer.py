"""The one path of a request: understand it, find or fetch its answer, give it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import xxhash

from samewise.core import canonical, request, side
from samewise.core.fingerprint import Environment
from samewise.core.plan import Context, Plan, Unit
from samewise.pipeline import reply
from samewise.pipeline.account import Marks
from samewise.pipeline.ask import Ask, Asked
from samewise.pipeline.control import Control
from samewise.pipeline.lane import Lane
from samewise.pipeline.receipts import Receipts
from samewise.pipeline.resolve import Resolver
from samewise.pipeline.several import Several
from samewise.pipeline.source import Reply
from samewise.ports import Clock


class Answerer:
    """Answers requests of the cached families."""

    def __init__(
        self,
        *,
        control: Control,
        resolver: Resolver,
        clock: Clock,
        lane: Lane,
        canary: float = 0.0,
        receipts: Receipts | None = None,
    ) -> None:
        """`lane`: where long prompts are keyed. `canary`: the share of misses for a waiting environment, 0 to 1."""
        self._receipts = receipts
        self._control = control
        self._resolver = resolver
        self._several = Several(resolver=resolver, clock=clock)
        self._clock = clock
        self._canary = canary
        self._lane = lane

    def plan(self, ask: Ask, environment: Environment | None = None) -> Plan:
        """What the request means now, or in another environment. Raises ProxyError where it can't be read."""
        return request.plan(
            ask.family,
            ask.raw,
            ask.controls,
            self._context(ask, functools.partial(_side, ask), environment),
            parsed=ask.value,
        )

    async def _planned(self, ask: Ask) -> Plan:
        """As `plan`. What it means now is taken once, here; only the work on a long prompt is elsewhere."""
        size = len(ask.raw)
        digest = functools.partial(_side, ask)
        if self._control.profiles.has_canary(_model(ask)):
            known = await self._lane.run(size, digest)
            digest = functools.partial(bytes, known)
        context = self._context(ask, digest)
        return await self._lane.run(size, request.plan, ask.family, ask.raw, ask.controls, context, parsed=ask.value)

    def _context(self, ask: Ask, side_of: Callable[[], bytes], environment: Environment | None = None) -> Context:
        return self._control.context(ask.tenant, _model(ask), side_of, environment)

    async def answer(self, ask: Ask, marks: Marks) -> Reply:
        """The reply to one request. Raises ProxyError where there is none to give."""
        reply = await self._answer(ask, marks)
        return reply if self._receipts is None else self._receipts.issued(ask, reply, marks)

    async def _answer(self, ask: Ask, marks: Marks) -> Reply:
        plan = await self._planned(ask)
        asked = Asked(ask, plan)
        marks.model, marks.stream = plan.model, plan.stream
        marks.snapshot = plan.context.snapshot.label()
        if plan.context.environment is not None:
            marks.environment = plan.context.environment.id
        if len(plan.units) > 1:
            return await self._several.answer(await self._sided(asked, marks), marks)
        unit = plan.units[0]
        marks.key = unit.key
        marks.seed = unit.seed if unit.pinned else None
        chosen = asked

        def divert() -> Asked | None:
            nonlocal chosen
            chosen = self._diverted(asked, marks) or asked
            return chosen if chosen is not asked else None

        source = await self._resolver.resolve(asked, unit, marks, divert)
        return await reply.make(ask.family, chosen.plan, source, marks, self._clock)

    async def _sided(self, asked: Asked, marks: Marks) -> Asked:
        """A request with several units, wholly on one side: what two environments say is never put together."""
        if not self._in_share(asked.plan.units) or not await self._resolver.lacks(asked):
            return asked
        return self._diverted(asked, marks) or asked

    def _diverted(self, asked: Asked, marks: Marks) -> Asked | None:
        """The request as one of the waiting environment, where it is in the share that goes there."""
        if not self._in_share(asked.plan.units):
            return None
        environment = self._control.rollout.waiting(asked.plan.model)
        if environment is None:
            return None
        plan = self.plan(asked.ask, environment)
        if len(plan.units) != len(asked.plan.units) or _place(plan.units) is None:
            return None
        marks.key = plan.units[0].key if len(plan.units) == 1 else None
        marks.environment = environment.id
        return Asked(asked.ask, plan)

    def _in_share(self, units: Sequence[Unit]) -> bool:
        place = _place(units)
        return place is not None and place < self._canary


def _place(units: Sequence[Unit]) -> float | None:
    """Where a request stands, from 0 to less than 1, by its key or keys; None where a unit has none."""
    keys = [unit.key for unit in units if unit.key is not None]
    if len(keys) != len(units):
        return None
    digits = keys[0] if len(keys) == 1 else canonical.sha256("\n".join(keys).encode())
    return int(digits[:8], 16) / 2**32


def _model(ask: Ask) -> str:
    model = ask.value.get("model")
    return model if isinstance(model, str) else ""


def _side(ask: Ask) -> bytes:
    """What a canary chooses its side by."""
    return xxhash.xxh3_128_digest(side.question(ask.family, ask.value))
