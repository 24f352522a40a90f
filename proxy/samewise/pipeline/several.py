"""A request with several units: each is looked up for itself, and they are answered in order as one.

What is recorded of one environment and what another says now are never put together: all units are asked anew then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from samewise.core import canonical
from samewise.core.answer import Answer, Event, Headers, Usage
from samewise.core.decide import Bypass, Refresh
from samewise.core.plan import Unit
from samewise.pipeline import reply
from samewise.pipeline.account import Marks
from samewise.pipeline.ask import Asked
from samewise.pipeline.resolve import Resolver
from samewise.pipeline.source import Coming, Given, Live, Reply, Source, as_events, typed
from samewise.ports import RECORDED, Clock, UpstreamFailed


class Several:
    """Units are asked each in its own upstream call, or what is missing `together` in one, as the family says."""

    def __init__(self, *, resolver: Resolver, clock: Clock) -> None:
        self._resolver = resolver
        self._clock = clock

    async def answer(self, asked: Asked, marks: Marks) -> Reply:
        """One reply for all units. Raises ProxyError; an upstream's error for one unit is the reply for all."""
        trails = [Marks() for _ in asked.plan.units]
        sources: list[Source] = []
        try:
            if asked.plan.together:
                made = await self._together(asked, trails, sources)
            elif asked.plan.stream:
                made = await self._streams(asked, trails, sources, marks)
            else:
                made = await self._each(asked, trails, sources)
        except UpstreamFailed as failure:
            marks.gather(trails)
            marks.forward = next((trail.forward for trail in trails if trail.forward), None)
            _leave(sources)
            raise reply.upstream_error(failure) from failure
        except BaseException:
            _leave(sources)
            raise
        marks.gather(trails)
        if made.live is None and made.status == 200:
            marks.usage = _asked_now(asked.family.usage(Answer(form="json", body=made.body)), trails)
        return made

    async def _each(self, asked: Asked, trails: list[Marks], sources: list[Source]) -> Reply:
        await self._resolve(asked, trails, sources)
        answers = []
        for source, trail in zip(sources, trails, strict=True):
            answer = await reply.settled(asked.family, source, trail, self._clock)
            if answer.status != 200:
                return Reply(status=answer.status, headers=answer.headers, body=answer.body, sources=tuple(sources))
            answers.append(answer)
        try:
            return self._joined(asked, answers, sources)
        except ValueError:
            failure = asked.family.failure
            pairs = zip(answers, asked.plan.units, strict=True)
            odd = next((answer for answer, unit in pairs if failure(answer, unit.request) is not None), answers[0])
            return Reply(status=200, headers=odd.headers, body=odd.body, sources=tuple(sources))

    async def _streams(self, asked: Asked, trails: list[Marks], sources: list[Source], marks: Marks) -> Reply:
        await self._resolve(asked, trails, sources)
        fields: Headers = ()
        for source in sources:
            match source:
                case Given(entry):
                    fields = fields or typed(entry.answer.headers, entry.answer, stream=True)
                case Coming():
                    head = await source.follower.begun()
                    if head.status != 200 or not head.streaming:
                        answer = await source.follower.settled()
                        return Reply(
                            status=answer.status, headers=head.headers, body=answer.body, sources=tuple(sources)
                        )
                    fields = fields or head.headers
        live = Live(self._interleaved(asked, trails, sources, marks), asked.family.cut)
        return Reply(status=200, headers=fields, live=live, sources=tuple(sources))

    async def _interleaved(
        self, asked: Asked, trails: Sequence[Marks], sources: Sequence[Source], marks: Marks
    ) -> AsyncIterator[Sequence[Event]]:
        """Every unit's events as they come, then the end that they share. Raises what cut one of them."""
        family = asked.family
        queue: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue(maxsize=64)

        async def pump(unit: int, source: Source) -> None:
            try:
                if isinstance(source, Given):
                    for event in as_events(family, source.entry.answer, include_usage=False):
                        await queue.put((unit, event))
                else:
                    async for burst in source.follower.bursts():
                        for event in family.visible(burst, False):
                            await queue.put((unit, event))
                await queue.put(None)
            except Exception as failure:
                await queue.put(failure)

        pumps = [asyncio.create_task(pump(unit, source)) for unit, source in enumerate(sources)]
        like: Event | None = None
        open_units = len(pumps)
        try:
            while open_units:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    open_units -= 1
                    continue
                unit, event = item
                if family.ends(event):
                    continue
                shifted = family.shift(event, unit, asked.plan.units[unit].request, like)
                like = like or shifted
                yield (shifted,)
            answers = [
                await reply.settled(family, source, trail, self._clock)
                for source, trail in zip(sources, trails, strict=True)
            ]
            marks.gather(trails)
            marks.usage = _asked_now(trails[0].usage, trails)
            yield family.closing(answers, [unit.request for unit in asked.plan.units], asked.plan.include_usage)
        finally:
            for task in pumps:
                task.cancel()

    async def _resolve(self, asked: Asked, trails: list[Marks], sources: list[Source]) -> None:
        units = asked.plan.units
        for unit, trail in zip(units, trails, strict=True):
            sources.append(await self._resolver.resolve(asked, unit, trail))
        if await _mixed(sources):
            trails[:] = [Marks() for _ in units]
            _leave(sources)
            sources[:] = [self._anew(asked, (unit,), trail) for unit, trail in zip(units, trails, strict=True)]

    def _anew(self, asked: Asked, units: Sequence[Unit], trail: Marks) -> Source:
        trail.outcome, trail.forward = "miss", "miss"
        return self._resolver.alone(asked, units, trail, keep=True)

    async def _together(self, asked: Asked, trails: list[Marks], sources: list[Source]) -> Reply:
        units, family = asked.plan.units, asked.family
        looked = [await self._resolver.look(asked, unit, trail) for unit, trail in zip(units, trails, strict=True)]
        missing = [at for at, outcome in enumerate(looked) if not isinstance(outcome, Given)]
        answers = {at: outcome.entry.answer for at, outcome in enumerate(looked) if isinstance(outcome, Given)}
        if missing:
            source = self._ask(asked, [units[at] for at in missing], trails[missing[0]], looked[missing[0]])
            sources.append(source)
            if await _mixed([*(outcome for outcome in looked if isinstance(outcome, Given)), source]):
                missing, trails[:] = list(range(len(units))), [Marks() for _ in units]
                _leave(sources)
                sources[:] = [source := self._anew(asked, units, trails[0])]
            asking, trail = [units[at] for at in missing], trails[missing[0]]
            answer = await reply.settled(family, source, trail, self._clock)
            for at in missing[1:]:
                trails[at].outcome, trails[at].stored = trail.outcome, trail.stored
            if answer.status != 200:
                return Reply(status=answer.status, headers=answer.headers, body=answer.body, sources=tuple(sources))
            try:
                parts = family.unbatch(answer, [unit.request for unit in asking])
            except ValueError:
                return Reply(status=200, headers=answer.headers, body=answer.body, sources=tuple(sources))
            answers.update(zip(missing, parts, strict=True))
        return self._joined(asked, [answers[at] for at in range(len(units))], sources)

    def _ask(self, asked: Asked, units: Sequence[Unit], trail: Marks, looked: object) -> Source:
        if isinstance(looked, Bypass | Refresh):
            return self._resolver.alone(asked, units, trail, keep=isinstance(looked, Refresh))
        key = canonical.sha256("\n".join(unit.key or "" for unit in units).encode())
        return self._resolver.join(key, trail) or self._resolver.begin(asked, units, key, trail)

    @staticmethod
    def _joined(asked: Asked, answers: Sequence[Answer], sources: Sequence[Source]) -> Reply:
        joined = asked.family.join(answers, [unit.request for unit in asked.plan.units])
        fields = typed(joined.headers, joined, stream=False)
        return Reply(status=200, headers=fields, body=joined.body, sources=tuple(sources))


def _asked_now(usage: Usage, trails: Sequence[Marks]) -> Usage:
    """Prefix reuse of the units that a backend was asked for; what recorded ones tell happened for another request."""
    cached = sum(trail.usage.cached_tokens for trail in trails if trail.outcome not in RECORDED)
    return msgspec.structs.replace(usage, cached_tokens=cached)


async def _mixed(sources: Sequence[Source]) -> bool:
    """Whether entries stand beside answers that another environment makes. Raises what ended one before its head."""
    recorded = {source.entry.environment for source in sources if isinstance(source, Given)}
    if not recorded:
        return False
    told = {(await source.follower.begun()).environment for source in sources if isinstance(source, Coming)}
    return not told <= {*recorded, None}


def _leave(sources: Sequence[Source]) -> None:
    for source in sources:
        if isinstance(source, Coming):
            source.leave()
