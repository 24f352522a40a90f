"""What an operator can do, beside the path of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from samewise.core import sampling
from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.pipeline import invalidate, profiles, rollout
from samewise.pipeline.control import Control
from samewise.pipeline.invalidate import Scope
from samewise.pipeline.profiles import Profile, UnknownProfile
from samewise.ports import Clock, ControlEvent, Engine, Store, StoreUnavailable


class Invalidated(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch`: how often this was invalidated so far; `matched`: entries that it ends, where they were counted."""

    scope: str
    value: str
    epoch: int | None = None
    matched: int | None = None


class Operations:
    """Every change is durable before it is answered. Errors are ProxyErrors that say what to do."""

    def __init__(self, *, control: Control, store: Store, engine: Engine, clock: Clock) -> None:
        self._control = control
        self._store = store
        self._engine = engine
        self._clock = clock

    # --- invalidation and entries ---------------------------------------------------------------------

    async def invalidate(self, scope: str, value: str, *, dry_run: bool, by: str, reason: str) -> Invalidated:
        """End what this names; with `dry_run` only count it."""
        known = _scope(scope)
        if known != "all" and not value:
            raise _bad(f"an invalidation of scope {scope!r} needs a value", "value")
        if known == "all":
            value = ""
        try:
            if dry_run:
                return Invalidated(scope=known, value=value, matched=await self.count(known, value))
            if known == "key":
                return await self._end_key(value, by=by, reason=reason)
            await self._control.invalidate(known, value, by=by, reason=reason)
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure
        return Invalidated(scope=known, value=value, epoch=self._control.invalidations.count(known, value))

    async def count(self, scope: Scope, value: str) -> int:
        """Entries that live and would end."""
        if scope == "key":
            found = await self._store.get(value)
            return int(found is not None and self._lives(found.entry))
        counted = 0
        async for entry in self._store.scan():
            counted += invalidate.matches(entry, scope, value) and self._lives(entry)
        return counted

    async def entry(self, key: str) -> Entry | None:
        """The entry under this key, None where there is none that lives."""
        try:
            found = await self._store.get(key)
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure
        return found.entry if found is not None and self._lives(found.entry) else None

    async def _end_key(self, key: str, *, by: str, reason: str) -> Invalidated:
        matched = await self.count("key", key)
        await self._control.invalidate("key", key, by=by, reason=reason)
        return Invalidated(scope="key", value=key, matched=matched)

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
        if name not in self._control.profiles.names() and not isinstance(match, str):
            self.profile(name)
        details: dict[str, Any] = {"values": checked}
        if isinstance(match, str):
            details["match"] = match
        kind = profiles.SET
        if percent is not None:
            if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent <= 100:
                raise _bad("percent should be a number above 0, up to 100", "percent")
            kind, details["percent"] = profiles.CANARY, percent
        await self._record(kind, name, details, by=by, reason=reason)
        return self.profile(name)

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
        """Every environment that an upstream has, with who has it and for which models it is active."""
        members = self._engine.members()
        models = sorted({model for member in members for model in member.models})
        active = {model: self._control.rollout.active(model) for model in models or [""]}
        items: dict[str, dict[str, Any]] = {}
        for member in members:
            environment = member.environment
            if environment is None:
                continue
            item = items.setdefault(
                environment.id,
                {
                    "id": environment.id,
                    "origin": environment.origin,
                    "engine": environment.engine,
                    "model": environment.model,
                    "active": any(chosen and chosen.id == environment.id for chosen in active.values()),
                    "active_for": [model for model, chosen in active.items() if chosen and chosen.id == environment.id],
                    "upstreams": [],
                    "manifest": environment.manifest,
                },
            )
            item["upstreams"].append({"url": member.url, "healthy": member.healthy, "draining": member.draining})
        return list(items.values())

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
        known = Counter(member.environment.id for member in self._engine.members() if member.environment)
        if identity not in known:
            raise ProxyError(
                404,
                f"no upstream has the environment {identity!r}; 'samewise environments list' shows what there is",
                code="unknown_environment",
            )
        await self._record(rollout.ACTIVATE, identity, {"model": model}, by=by, reason=reason)

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


def _values(values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise _bad("values should be an object of sampling values", "values")
    for field, problem in sampling.validate(values):
        raise _bad(f"{field} {problem}", f"values.{field}")
    return values


def _bad(message: str, param: str) -> ProxyError:
    return ProxyError(400, message, code="invalid_value", param=param)


def _store_down(failure: StoreUnavailable) -> ProxyError:
    return ProxyError(
        503,
        f"the store can't be reached ({failure.kind}), so nothing was changed; try again when it is back",
        code="store_unavailable",
    )
