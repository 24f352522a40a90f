"""Receipts of answers: an id for the caller at once, a line in the log when the answer is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from samewise.core import canonical, divergence
from samewise.core.answer import Answer, Event
from samewise.core.entry import Entry
from samewise.core.families.contract import Family
from samewise.core.families.registry import BY_NAME
from samewise.core.receipts import Checked, Line, Receipt
from samewise.pipeline.account import Marks
from samewise.pipeline.ask import Ask
from samewise.pipeline.source import Live, Reply
from samewise.pipeline.verify.recompute import Failed, Run
from samewise.ports import Clock


class Log(Protocol):
    """An append-only, hash-chained log."""

    def append(self, receipt: Receipt) -> None:
        """Keep it, soon and in order; never waits."""

    async def get(self, identity: str) -> Line | None:
        """The line with this id."""

    async def check(self) -> Checked:
        """Whether all of it is as it was written."""


class Receipts:
    """Issues receipts for answers of the cached families that succeeded."""

    def __init__(self, log: Log, clock: Clock, ids: Callable[[], str]) -> None:
        self._log = log
        self._clock = clock
        self._ids = ids

    def issued(self, ask: Ask, reply: Reply, marks: Marks) -> Reply:
        """The reply, which tells its receipt's id; a stream is followed to its end. An error has no receipt."""
        if reply.status != 200:
            return reply
        marks.receipt = self._ids()
        if reply.live is not None:
            reply.live = Live(self._followed(ask, reply.live.bursts, marks), reply.live.cut)
            return reply
        if reply.recorded is not None:
            answer = Answer(form="sse", events=reply.recorded)
        else:
            answer = Answer(form="json", body=reply.body)
        self._write(ask, marks, said(ask.family, answer))
        return reply

    async def _followed(
        self, ask: Ask, bursts: AsyncIterator[Sequence[Event]], marks: Marks
    ) -> AsyncIterator[Sequence[Event]]:
        seen: list[Event] = []
        output: str | None = None
        try:
            async for burst in bursts:
                seen.extend(burst)
                yield burst
            output = said(ask.family, Answer(form="sse", events=tuple(seen)))
        finally:
            self._write(ask, marks, output)

    def _write(self, ask: Ask, marks: Marks, output: str | None) -> None:
        self._log.append(
            Receipt(
                id=marks.receipt or "",
                at=self._clock.now(),
                cache=marks.outcome,
                family=ask.family.name,
                model=marks.model,
                tenant=ask.tenant,
                key=marks.key,
                environment=marks.environment,
                snapshot=marks.snapshot,
                request=canonical.sha256(ask.raw),
                output=output,
            )
        )


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the entry and the present backend still say what the receipt says; None where that can't be known."""

    id: str
    verdict: str
    entry: bool | None = None
    backend: bool | None = None
    why: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told


async def replay(
    line: Line, entry: Entry | None, run: Callable[[Entry], Awaitable[Run]], asked: dict[str, Any] | None = None
) -> Replayed:
    """Ask the backend now what the receipt's answer was to. `entry` is what is stored under its key, if anything.

    `asked`: the request's body, for who kept it; without it the entry's is asked.
    """
    receipt = line.receipt
    family = BY_NAME.get(receipt.family)
    if receipt.output is None or family is None:
        return Replayed(id=receipt.id, verdict="inconclusive", why="the answer did not reach its end")
    same = None if entry is None else said(family, entry.answer) == receipt.output
    question = _question(receipt, asked) if asked is not None else entry
    if question is None:
        why = "the entry is gone; replay it with the request that was asked (--request FILE)"
        return Replayed(id=receipt.id, verdict="inconclusive", why=why)
    try:
        answered = await run(question)
    except Failed as failure:
        return Replayed(id=receipt.id, verdict="inconclusive", entry=same, why=f"{failure.kind}: {failure}")
    again = divergence.digest(answered.outputs) == receipt.output
    return Replayed(id=receipt.id, verdict="match" if again else "divergent", entry=same, backend=again)


def _question(receipt: Receipt, asked: dict[str, Any]) -> Entry:
    """Enough of an entry to ask again."""
    request = {name: value for name, value in asked.items() if name not in {"stream", "stream_options", "cache"}}
    return Entry(
        key=receipt.key or "",
        created=receipt.at,
        ttl=0.0,
        began=0,
        tenant=receipt.tenant,
        family=receipt.family,
        model=receipt.model,
        environment=receipt.environment or "",
        snapshot=receipt.snapshot or "",
        request=canonical.encode(request),
        answer=Answer(form="json"),
    )


def said(family: Family, answer: Answer) -> str | None:
    """The hash of what an answer says; None where it can't be read."""
    try:
        return divergence.digest(tuple(family.outputs(answer)))
    except (ValueError, KeyError, TypeError):
        return None
