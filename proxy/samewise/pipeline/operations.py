"""What an operator can do, beside the path of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from samewise.core import sampling
from samewise.core.address import base_url
from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.pipeline import environments, fleet, invalidate, keyring, profiles, rollout
from samewise.pipeline.control import Control
from samewise.pipeline.invalidate import Scope
from samewise.pipeline.profiles import Profile, UnknownProfile
from samewise.ports import Clock, ControlEvent, Engine, Store, StoreUnavailable

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_VALUES = 10_000
"""Tags or keys that one call may name."""


class Invalidated(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch`: how often this was invalidated so far; `matched`: entries that it ends, where they were counted."""

    scope: str
    value: str
    epoch: int | None = None
    matched: int | None = None


class Operations:
    """Every change is durable before it is answered. Errors are ProxyErrors that say what to do."""

    def __init__(
        self,
        *,
        control: Control,
        store: Store,
        engine: Engine,
        clock: Clock,
        reclaim: Callable[[ControlEvent], None] = lambda event: None,
    ) -> None:
        """`reclaim` is told of every invalidation made here, once it is durable."""
        self._control = control
        self._store = store
        self._engine = engine
        self._clock = clock
        self._reclaim = reclaim

    # --- invalidation and entries ---------------------------------------------------------------------

    async def invalidate(
        self, scope: str, value: str | Sequence[str], *, dry_run: bool, by: str, reason: str, tenant: str = ""
    ) -> Invalidated:
        """End what this names; with `dry_run` only count it. Several values are for `tag` and `key` alone.

        `tenant`: whose tags; without one everybody's.
        """
        known = _scope(scope)
        if tenant and known != "tag":
            raise _bad("a tenant can be named beside tags alone", "tenant")
        values = _named(known, value)
        first = values[0] if len(values) == 1 else ""
        try:
            if dry_run:
                return Invalidated(scope=known, value=first, matched=await self.count(known, values, tenant))
            matched = await self.count(known, values) if known == "key" else None
            event = await self._control.invalidate(
                known, first, by=by, reason=reason, values=values[1:] and values, tenant=tenant
            )
        except StoreUnavailable as failure:
            raise _not_known(failure) from failure
        if known != "key":
            self._reclaim(event)
        epoch = self._control.invalidations.count(known, values[0]) if known != "key" else None
        return Invalidated(scope=known, value=first, epoch=epoch, matched=matched)

    async def count(self, scope: Scope, values: Sequence[str], tenant: str = "") -> int:
        """Entries that live and would end."""
        counted = 0
        if scope == "key":
            for value in values:
                found = await self._store.get(value)
                counted += found is not None and self._lives(found.entry)
            return counted
        wanted = frozenset(values)
        async for entry in self._store.scan():
            counted += any(invalidate.matches(entry, scope, value, tenant) for value in wanted) and self._lives(entry)
        return counted

    async def entry(self, key: str) -> Entry | None:
        """The entry under this key, None where there is none that lives."""
        try:
            found = await self._store.get(key)
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure
        return found.entry if found is not None and self._lives(found.entry) else None

    def _lives(self, entry: Entry) -> bool:
        return entry.fresh(self._clock.now()) and not self._control.ended(entry)

    # --- sampling profiles ----------------------------------------------------------------------------

    def profile_names(self) -> tuple[str, ...]:
        """In the order in which they are tried for a model."""
        return tuple(self._control.profiles.names())

    def profile(self, name: str) -> Profile:
        """All versions of a profile."""
        try:
            return self._control.profiles.get(name)
        except UnknownProfile:
            known = ", ".join(self._control.profiles.names())
            raise ProxyError(
                404, f"there is no sampling profile {name!r}; there are: {known}", code="unknown_profile", param="name"
            ) from None

    async def set_profile(
        self, name: str, values: object, *, by: str, reason: str, match: object = None, percent: object = None
    ) -> Profile:
        """A new version: active at once, or a canary for `percent` of the requests."""
        checked = _values(values)
        details: dict[str, Any] = {"values": checked}
        if match is None:
            self.profile(name)
        else:
            details["match"] = self._match(name, match)
        kind = profiles.SET
        if percent is not None:
            if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
                raise _bad("percent should be a number above 0, up to 100", "percent")
            kind, details["percent"] = profiles.CANARY, percent
        await self._record(kind, name, details, by=by, reason=reason)
        return self.profile(name)

    def _match(self, name: str, match: object) -> str:
        """The model names of a profile that is new; one that is there keeps its own."""
        if not isinstance(match, str) or not match:
            raise _bad("match should be a glob of model names, such as 'm-*'", "match")
        if name in self._control.profiles.names():
            there = self._control.profiles.get(name).match
            if there != match:
                raise _bad(f"the profile {name!r} is for the models {there!r}, for good; name another one", "match")
        elif not _NAME.fullmatch(name):
            raise _bad("the name of a profile should be 1 to 64 letters, digits, '.', '_' or '-'", "name")
        return match

    async def promote(self, name: str, *, by: str, reason: str) -> Profile:
        """The canary becomes active."""
        if self.profile(name).canary is None:
            raise ProxyError(409, f"the profile {name!r} has no canary to promote", code="no_canary")
        await self._record(profiles.PROMOTE, name, {}, by=by, reason=reason)
        return self.profile(name)

    async def rollback(self, name: str, *, by: str, reason: str) -> Profile:
        """The canary ends; without one, the version that was active before is active again."""
        profile = self.profile(name)
        if profile.canary is None and not profile.previous:
            raise ProxyError(
                409, f"the profile {name!r} has no earlier version to go back to", code="nothing_to_roll_back"
            )
        await self._record(profiles.ROLLBACK, name, {}, by=by, reason=reason)
        return self.profile(name)

    # --- environments ---------------------------------------------------------------------------------

    def environments(self) -> list[dict[str, Any]]:
        """Every environment that an upstream has or that is active, with who has it and what tells it apart."""
        return environments.describe(self._engine.members(), self._control.rollout)

    async def change_upstream(self, kind: str, url: str, *, by: str, reason: str) -> None:
        """Add (or use again), drain or remove an upstream, on every proxy of the store."""
        try:
            url = base_url(url)
        except ValueError as wrong:
            raise _bad(f"url {wrong}", "url") from None
        known = {member.url for member in self._engine.members()}
        if kind != fleet.ADD and url not in known:
            raise ProxyError(
                404,
                f"{url} is not among the upstreams; 'samewise upstreams list' shows them",
                code="unknown_upstream",
                param="url",
            )
        await self._record(kind, url, {}, by=by, reason=reason)

    def upstreams(self) -> list[dict[str, Any]]:
        """Every upstream as it was last seen."""
        return [
            {
                "url": member.url,
                "healthy": member.healthy,
                "draining": member.draining,
                "environment": member.environment.id if member.environment else None,
                "models": list(member.models),
                "running": member.running,
                "error": member.error,
            }
            for member in self._engine.members()
        ]

    async def activate(self, identity: str, *, model: str, by: str, reason: str) -> None:
        """Make an environment the active one, for one model or for all."""
        known = {member.environment.id: member.environment for member in self._engine.members() if member.environment}
        if identity not in known:
            raise ProxyError(
                404,
                f"no upstream has the environment {identity!r}; 'samewise environments list' shows what there is",
                code="unknown_environment",
            )
        standing = self._control.rollout.standing(model)
        await self._record(
            rollout.ACTIVATE, identity, rollout.activation(known[identity], model, standing), by=by, reason=reason
        )

    async def revoke_key(self, sha256: str, *, by: str) -> None:
        """No request with this key is let in any more, by any proxy on the store."""
        await self._record(keyring.REVOKE, sha256, {}, by=by, reason="")

    async def _record(self, kind: str, subject: str, values: Mapping[str, Any], *, by: str, reason: str) -> None:
        event = ControlEvent(
            kind=kind, subject=subject, values=dict(values), by=by, reason=reason, at=self._clock.now()
        )
        try:
            await self._control.record(event)
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure


def _scope(scope: str) -> Scope:
    for known in invalidate.SCOPES:
        if scope == known:
            return known
    raise _bad(f"the scope should be one of {', '.join(invalidate.SCOPES)}, not {scope!r}", "scope")


def _named(scope: Scope, value: str | Sequence[str]) -> list[str]:
    """The values that are meant, each once."""
    if scope == "all":
        if value:
            raise _bad("an invalidation of scope 'all' takes no value: it ends everything", "value")
        return [""]
    if isinstance(value, str):
        if not value:
            raise _bad(f"an invalidation of scope {scope!r} needs a value", "value")
        return [value]
    values = list(dict.fromkeys(value))
    if not values or not all(values) or len(values) > MAX_VALUES:
        raise _bad(f"value should be a text, or a list of 1 to {MAX_VALUES} texts", "value")
    if len(values) > 1 and scope not in {"tag", "key"}:
        raise _bad(f"an invalidation of scope {scope!r} takes one value; only tag and key take a list", "value")
    return values


def _values(values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise _bad("values should be an object of sampling values", "values")
    for field, problem in sampling.validate(values):
        raise _bad(f"{field} should be {problem}", f"values.{field}")
    return values


def _bad(message: str, param: str) -> ProxyError:
    return ProxyError(400, message, code="invalid_value", param=param)


def _not_known(failure: StoreUnavailable) -> ProxyError:
    return ProxyError(
        503,
        f"the store can't be reached ({failure.kind}), so it is not known whether this was done, and entries may "
        "still be served; try again when it is back",
        code="store_unavailable",
    )


def _store_down(failure: StoreUnavailable) -> ProxyError:
    return ProxyError(
        503,
        f"the store can't be reached ({failure.kind}), so nothing was changed; try again when it is back",
        code="store_unavailable",
    )
