"""Asks a backend the acceptance's questions, past every cache of ours, and judges the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from samewise.core import canonical
from samewise.core.acceptance import Asking, Judge, Report, Sample, schedule
from samewise.core.answer import Answer, Headers
from samewise.core.families.contract import Family
from samewise.core.families.registry import BY_NAME
from samewise.core.prompts import Prompt
from samewise.pipeline.whole import whole
from samewise.ports import Call, Engine, Exchange, UpstreamFailed

_JSON: Headers = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
_REFUSED = frozenset({400, 404, 422})


class Unreachable(Exception):
    """Nothing answered at all; the message says what was tried."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked: any upstream of `environment`, or the one at `member`, or whoever the engine chooses."""

    model: str
    environment: str | None = None
    member: str | None = None
    headers: Headers = ()


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What a server takes beside OpenAI's fields."""

    logprobs: bool = True
    token_ids: bool = True
    salt: bool = True


_TRIED = (
    Extras(),
    Extras(salt=False),
    Extras(token_ids=False, salt=False),
    Extras(logprobs=False, token_ids=False, salt=False),
)


class Runner:
    """`salt` makes a word that no prefix cache has seen; `progress` is told answers had and answers in all."""

    def __init__(
        self,
        engine: Engine,
        *,
        salt: Callable[[], str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._engine = engine
        self._salt = salt
        self._progress = progress

    async def run(
        self,
        targets: Sequence[Target],
        prompts: Sequence[Prompt],
        *,
        repeat: int,
        concurrencies: Sequence[int],
    ) -> Report:
        """Ask all targets, one after the other; those of one environment are held against each other.

        Raises Unreachable where a target's first question gets no answer from anyone.
        """
        judge = Judge(targets[0].model)
        total = len(targets) * len(prompts) * repeat * len(set(concurrencies))
        notes: dict[str, None] = {}
        done = 0
        for target in targets:
            extras = await self._extras(target, prompts[0])
            if not extras.salt:
                notes.setdefault("the server takes no cache_salt: a cold prefix cache could not be had")
            if not extras.logprobs:
                notes.setdefault("the server tells no log-probabilities: gaps are unknown")
            warm = self._salt()
            for round_ in schedule(prompts, repeat, concurrencies):
                async for sample in self._round(target, round_, extras, warm):
                    judge.add(sample)
                    done += 1
                    self._progress(done, total)
        return judge.report(tuple(notes))

    async def _extras(self, target: Target, prompt: Prompt) -> Extras:
        """The most that the server takes."""
        asking = Asking(prompt=prompt, concurrency=1, stream=False, warm=False)
        for extras in _TRIED:
            try:
                exchange = await self._open(target, asking, extras, self._salt())
            except UpstreamFailed as failure:
                raise Unreachable(str(failure)) from failure
            await _to_its_end(exchange)
            if exchange.status not in _REFUSED:
                return extras
        return _TRIED[0]

    async def _round(
        self, target: Target, askings: Sequence[Asking], extras: Extras, warm: str
    ) -> AsyncIterator[Sample]:
        """The samples in the order of `askings`, `concurrency` of them under way at a time."""
        if not askings:
            return
        under_way: list[asyncio.Task[Sample]] = []
        slots = asyncio.Semaphore(askings[0].concurrency)

        async def one(asking: Asking) -> Sample:
            async with slots:
                return await self._ask(target, asking, extras, f"{warm}-{asking.prompt.name}")

        try:
            under_way = [asyncio.create_task(one(asking)) for asking in askings]
            for task in under_way:
                yield await task
        finally:
            for task in under_way:
                task.cancel()

    async def _ask(self, target: Target, asking: Asking, extras: Extras, warm: str) -> Sample:
        family = BY_NAME[asking.prompt.family]
        member, environment = target.member or "", target.environment or ""
        try:
            exchange = await self._open(target, asking, extras, warm if asking.warm else self._salt())
            member, environment = exchange.member, exchange.environment or ""
            answer = await _to_its_end(exchange)
        except UpstreamFailed as failure:
            return Sample(asking=asking, environment=environment, member=member, failure=str(failure))
        failure_ = _failure(family, answer, asking)
        if failure_:
            return Sample(asking=asking, environment=environment, member=member, failure=failure_)
        return Sample(
            asking=asking,
            environment=environment,
            member=member,
            outputs=tuple(family.outputs(answer)),
            cached_tokens=_cached(family, answer),
        )

    async def _open(self, target: Target, asking: Asking, extras: Extras, salt: str) -> Exchange:
        family = BY_NAME[asking.prompt.family]
        body: dict[str, Any] = {"model": target.model, **asking.prompt.body}
        if extras.logprobs:
            body |= {"logprobs": True, "top_logprobs": 2} if family.name == "chat" else {"logprobs": 2}
        if extras.token_ids:
            body["return_token_ids"] = True
        if extras.salt:
            body["cache_salt"] = salt
        if asking.stream:
            body = family.upstream_stream({**body, "stream": True})
        return await self._engine.open(
            Call(
                method="POST",
                path=family.path,
                body=canonical.encode(body),
                headers=(*_JSON, *target.headers),
                model=target.model,
                environment=target.environment,
                member=target.member,
                purpose="verify",
            )
        )


async def _to_its_end(exchange: Exchange) -> Answer:
    try:
        return await whole(exchange)
    finally:
        await exchange.close()


def _failure(family: Family, answer: Answer, asking: Asking) -> str:
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
    reason = family.failure(answer, asking.prompt.body)
    return "" if reason is None else f"no whole answer ({reason})"


def _cached(family: Family, answer: Answer) -> int | None:
    raw = answer.body if answer.form == "json" else b"".join(event.data for event in answer.events)
    return family.usage(answer).cached_tokens if b"cached_tokens" in raw else None
