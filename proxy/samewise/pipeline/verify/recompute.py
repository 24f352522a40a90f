"""One recorded request asked again, past the cache and every shared fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from samewise.core import again
from samewise.core.again import TRIED, Extras, both
from samewise.core.answer import Answer, Headers, Usage
from samewise.core.entry import Entry
from samewise.core.families.contract import Family, Output
from samewise.core.families.registry import BY_NAME
from samewise.core.fingerprint import CONTRACT, Environment
from samewise.pipeline.confirm import environment_of
from samewise.pipeline.whole import whole
from samewise.ports import Call, Clock, Engine, Exchange, Member, UpstreamFailed

Kind = Literal["busy", "unreachable", "timeout", "refused", "truncated", "environment", "unreadable"]
PLAIN = Extras(logprobs=False, token_ids=False)
"""The request as it was, but for its prefix cache."""
CLOSELY = Extras()
_BUSY = frozenset({408, 425, 429})
_NOT_TAKEN = frozenset({400, 404, 422})


class Failed(Exception):
    """No answer to compare. `retry_after`: seconds that the upstream asked to be left alone."""

    def __init__(self, kind: Kind, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.kind = kind
        self.retry_after = retry_after


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A recomputation. `warm` is None where nobody can tell whether prefix KV was reused; `at` since the epoch."""

    answer: Answer
    outputs: tuple[Output, ...]
    usage: Usage
    cached_tokens: int | None
    warm: bool | None
    concurrency: int
    member: str
    instance: str | None
    at: float


class Recomputer:
    """`salts` gives the `cache_salt` of a tenant's own requests (empty: none), `fresh` one that nobody has used."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        salts: Callable[[str, Environment], str],
        fresh: Callable[[], str],
        timeout: float,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._salts = salts
        self._fresh = fresh
        self._timeout = timeout
        self._taken: dict[str, Extras] = {}

    async def run(self, entry: Entry, *, warm: bool = False, member: str | None = None, closely: bool = False) -> Run:
        """The answer now. `warm`: prefix KV of earlier requests may be reused. `closely`: with log-probabilities
        and token ids, where the upstream gives them. Raises Failed."""
        family = BY_NAME.get(entry.family)
        environment = self.environment(entry)
        if family is None or environment is None:
            raise Failed("environment", "no upstream has the environment any more")
        wanted = both(CLOSELY if closely else PLAIN, self._taken.get(entry.environment, CLOSELY))
        try:
            async with asyncio.timeout(self._timeout):
                return await self._run(family, entry, environment, wanted, warm=warm, member=member)
        except TimeoutError:
            raise Failed("timeout", f"no answer within {self._timeout:g} s") from None

    def environment(self, entry: Entry) -> Environment | None:
        """The entry's environment, while some upstream has it."""
        for member in self._engine.members():
            if member.environment is not None and member.environment.id == entry.environment:
                return member.environment
        return None

    def peers(self, entry: Entry) -> list[Member]:
        """The healthy upstreams that have the entry's environment and model."""
        members = [
            member
            for member in self._engine.members()
            if member.healthy
            and not member.draining
            and member.environment is not None
            and member.environment.id == entry.environment
        ]
        serving = [member for member in members if entry.model in member.models]
        return serving or members

    def where(self, name: str | None) -> str | None:
        """The upstream that has this URL, or calls itself this; None where none does."""
        for member in self._engine.members():
            if name in {member.url, instance_of(member)}:
                return member.url
        return None

    async def still(self, entry: Entry, run: Run) -> bool:
        """True where the upstream that recomputed is now what it was."""
        environment = self.environment(entry)
        known = any(member.url == run.member for member in self._engine.members())
        if environment is None or environment.origin != CONTRACT or not known:
            return environment is not None
        return await environment_of(self._engine, run.member) == entry.environment

    async def _run(
        self, family: Family, entry: Entry, environment: Environment, wanted: Extras, *, warm: bool, member: str | None
    ) -> Run:
        tries = dict.fromkeys(both(wanted, tried) for tried in TRIED)
        for extras in tries:
            prefix = self._salts(entry.tenant, environment) if warm else self._fresh()
            call = self._call(family, entry, extras, prefix, member)
            exchange = await self._open(call)
            try:
                _check_environment(exchange, entry)
                if exchange.status in _NOT_TAKEN and extras != list(tries)[-1]:
                    continue
                answer = await _answer(exchange)
            finally:
                await exchange.close()
            if extras != wanted:
                self._taken[entry.environment] = both(self._taken.get(entry.environment, CLOSELY), extras)
            return self._read(family, entry, answer, exchange, cold=not warm and extras.salt)
        raise AssertionError("there is always a last try")

    def _call(self, family: Family, entry: Entry, extras: Extras, prefix: str, member: str | None) -> Call:
        try:
            body = again.body(family, entry, extras, prefix)
        except ValueError as error:
            raise Failed("unreadable", str(error)) from error
        return Call(
            method="POST",
            path=again.path(family, entry),
            body=body,
            headers=again.fields(entry),
            model=entry.model,
            environment=entry.environment,
            member=member,
            purpose="verify",
        )

    async def _open(self, call: Call) -> Exchange:
        try:
            return await self._engine.open(call)
        except UpstreamFailed as failure:
            raise _failed(failure) from failure

    def _read(self, family: Family, entry: Entry, answer: Answer, exchange: Exchange, *, cold: bool) -> Run:
        reason = family.failure(answer, again.request(entry))
        if reason is not None:
            raise Failed("truncated", f"the answer is not whole ({reason})")
        cached = cached_tokens(family, answer)
        return Run(
            answer=answer,
            outputs=tuple(family.outputs(answer)),
            usage=family.usage(answer),
            cached_tokens=cached,
            warm=cached > 0 if cached is not None else False if cold else None,
            concurrency=exchange.concurrency,
            member=exchange.member,
            instance=exchange.instance,
            at=self._clock.now(),
        )


def cached_tokens(family: Family, answer: Answer) -> int | None:
    """Prompt tokens that came from prefix KV; None where the answer doesn't say."""
    raw = answer.body if answer.form == "json" else b"".join(event.data for event in answer.events)
    return family.usage(answer).cached_tokens if b"cached_tokens" in raw else None


def instance_of(member: Member) -> str | None:
    """The name that the upstream gives itself."""
    info = member.environment.manifest.get("info") if member.environment is not None else None
    name = info.get("instance") if isinstance(info, dict) else None
    return name if isinstance(name, str) else None


def _check_environment(exchange: Exchange, entry: Entry) -> None:
    if exchange.environment is not None and exchange.environment != entry.environment:
        raise Failed("environment", "another environment answered")


async def _answer(exchange: Exchange) -> Answer:
    """All of the answer. Raises Failed where there is none, or where it is an error."""
    status = exchange.status
    if status in _BUSY or status >= 500:
        raise Failed("busy", f"the upstream answered {status}", _retry_after(exchange.headers))
    if status != 200:
        raise Failed("refused", f"the upstream answered {status}")
    try:
        return await whole(exchange)
    except UpstreamFailed as failure:
        raise _failed(failure) from failure


def _failed(failure: UpstreamFailed) -> Failed:
    match failure.kind:
        case "timeout":
            return Failed("timeout", str(failure))
        case "none-eligible":
            return Failed("environment", str(failure))
        case "unreachable":
            return Failed("unreachable", str(failure))
        case _:
            return Failed("truncated", str(failure))


def _retry_after(headers: Headers) -> float | None:
    value = next((value for name, value in headers if name == "retry-after"), "")
    return float(value) if value.isdecimal() and len(value) < 6 else None
