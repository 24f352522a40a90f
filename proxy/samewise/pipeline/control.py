"""What operators decided, as it stands now: the fold of the journal, and the context that requests take from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from samewise.core import salt
from samewise.core.entry import Entry
from samewise.core.fingerprint import Environment
from samewise.core.plan import Context, Snapshot
from samewise.core.tenants import Key
from samewise.pipeline import adopted, fleet, invalidate, keyring, profiles, rollout
from samewise.pipeline.adopted import Adopted
from samewise.pipeline.fleet import Fleet
from samewise.pipeline.flight import Flights
from samewise.pipeline.invalidate import Invalidations, Scope
from samewise.pipeline.keyring import Keyring
from samewise.pipeline.profiles import Profiles
from samewise.pipeline.rollout import Rollout
from samewise.pipeline.verify import withheld
from samewise.pipeline.verify.withheld import Withheld
from samewise.ports import (
    UNREADABLE,
    Clock,
    ControlEvent,
    Journal,
    Notice,
    Observer,
    Store,
    StoreUnavailable,
)

_log = logging.getLogger("samewise.control")

RETRY = 1.0
"""Seconds until a journal that can't be read is tried again."""


class Control:
    """Follows the journal. What it says changes only between two requests, never within one."""

    def __init__(
        self,
        *,
        journal: Journal,
        store: Store,
        flights: Flights,
        profiles: Profiles,
        rollout: Rollout,
        fleet: Fleet,
        observer: Observer,
        clock: Clock,
        unseeded: Literal["bypass", "pin", "record"] = "bypass",
        assume_defaults: bool = False,
        on_invalidation: Callable[[ControlEvent], None] = lambda event: None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._flights = flights
        self._observer = observer
        self._clock = clock
        self._unseeded = unseeded
        self._assume_defaults = assume_defaults
        self._on_invalidation = on_invalidation
        self._follower: asyncio.Task[None] | None = None
        self._configured: Mapping[str, Mapping[str, Any]] = {}
        self._provisional = False
        self.profiles = profiles
        self.rollout = rollout
        self._fleet = fleet
        self.adopted = Adopted()
        self.keyring = Keyring()
        self.salts: bytes | None = None
        """What tenants' salts are derived from; None where there are none."""
        self.invalidations = Invalidations()
        self.withheld = Withheld()
        self.number = 0
        """The last event taken in."""
        self.ready = False
        """True once the journal was read to its end: before that nobody may decide what is for all."""
        self.generation = 0
        """Advances with everything that may change what a request means or whether an entry is still right."""

    async def start(self, configured: Mapping[str, Mapping[str, Any]]) -> None:
        """Catch up, make the profiles of the settings their newest versions, and follow from now on.

        A journal that can't be read now is followed as soon as it can; until then the settings hold.
        """
        self._configured = configured
        try:
            await self._adopt()
        except StoreUnavailable:
            self._provisional = True
            for event in self._adoptions():
                self.profiles.apply(event)
            self.generation += 1
        self._follower = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop following."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower

    def context(
        self, tenant: str, model: str, prompt: Callable[[], bytes], environment: Environment | None = None
    ) -> Context:
        """All that decides how a request of this tenant for this model is understood, as of now.

        `prompt` gives the bytes by which a canary chooses its side; it is called only while there is one.
        `environment`: another one than the active one.
        """
        environment = environment or self.rollout.active(model) or self._adopted(model)
        sided = prompt() if self.profiles.has_canary(model) else b""
        snapshot: Snapshot = self.profiles.snapshot(tenant, model, sided)
        return Context(
            tenant=tenant,
            environment=environment,
            snapshot=snapshot,
            epochs=self.invalidations.epochs(
                model=model,
                environment=environment.id if environment else "",
                tenant=tenant,
                profile=snapshot.profile,
            ),
            number=self.number,
            unseeded=self._unseeded,
            assume_defaults=self._assume_defaults,
            salt=self._salt(tenant, environment),
        )

    def _salt(self, tenant: str, environment: Environment | None) -> str:
        if self.salts is None or not tenant or environment is None or environment.engine not in salt.ENGINES:
            return ""
        return salt.derive(self.salts, tenant)

    @property
    def informed(self) -> bool:
        """False until the journal could be read: what was ended is not known, so nothing stored may be served."""
        return not self._provisional

    def salt(self, tenant: str, environment: Environment) -> str:
        """The `cache_salt` of a tenant's own requests, empty where they have none."""
        return self._salt(tenant, environment)

    def ended(self, entry: Entry) -> bool:
        """True where an invalidation came after what the entry's fill knew."""
        return self.invalidations.ended(entry)

    def may_have_ended(self, entry: Entry) -> bool:
        """True where an invalidation came after what the entry's fill knew, or nobody can tell."""
        return not self.informed or self.ended(entry)

    def use_keys(self, keys: Sequence[Key], *, guarded: bool = False) -> None:
        """The settings name these keys from now on: every right to an answer is looked at anew.

        `guarded`: a request needs one even where there is none.
        """
        self.keyring.configure(keys, guarded=guarded)
        self.generation += 1

    def members_changed(self) -> None:
        """An upstream is not what it was."""
        self.rollout.changed()
        self.generation += 1

    async def record(self, event: ControlEvent) -> ControlEvent:
        """Make an event durable and take it in. Raises StoreUnavailable: then nothing has changed."""
        recorded = await self._journal.append(event)
        await self.catch_up()
        return recorded

    async def invalidate(
        self, scope: Scope, value: str, *, by: str, reason: str = "", values: Sequence[str] = (), tenant: str = ""
    ) -> ControlEvent:
        """End what this names (of a `tenant` tags alone), for every proxy on the store. Raises StoreUnavailable."""
        event = invalidate.event(scope, value, by=by, reason=reason, at=self._clock.now(), values=values, tenant=tenant)
        return await self.record(event)

    async def _follow(self) -> None:
        while True:
            try:
                if self._provisional:
                    await self._adopt()
                async for _ in self._journal.changes():
                    await self.catch_up()
            except StoreUnavailable:
                pass
            except Exception:
                _log.exception("following the journal failed; it is tried again")
            await asyncio.sleep(RETRY)

    async def catch_up(self) -> None:
        """Take in what the journal has by now; what it had before the start is no news. Raises StoreUnavailable."""
        events = await self._journal.since(self.number)
        if self._provisional:
            self._provisional = False
            self.profiles.forget()
        for event in events:
            if event.number > self.number:
                self.number = event.number
                await self._take_in(event, news=self.ready)
        if events and not self.ready:
            _log.info("the journal was read: %d events, the last is number %d", len(events), self.number)
        self.ready = True

    async def _take_in(self, event: ControlEvent, *, news: bool) -> None:
        """One event that can't be applied is left out, aloud: those after it hold all the same."""
        self.generation += 1
        try:
            await self._apply(event)
        except Exception as failure:
            why = str(failure) if isinstance(failure, ValueError) else repr(failure)
            told = {"of": event.kind, "by": event.by, "number": event.number, "why": why[:200]}
            self._observer.notice(Notice(kind="control-skipped", detail=told))
            return
        if not news:
            return
        self._observer.notice(
            Notice(
                kind="control",
                attributes={"kind": event.kind},
                detail={"subject": event.subject, "by": event.by, "reason": event.reason, "number": event.number},
            )
        )

    async def _apply(self, event: ControlEvent) -> None:
        """Raises ValueError where the event can't be understood; kinds of other releases are nothing to this one."""
        match event.kind:
            case invalidate.KIND:
                self.invalidations.apply(event)
                await self._end(event)
                self._on_invalidation(event)
            case kind if kind in profiles.KINDS:
                self.profiles.apply(event)
            case kind if kind in rollout.KINDS:
                self.rollout.apply(event)
            case kind if kind in fleet.KINDS:
                await self._fleet.apply(event)
            case keyring.REVOKE:
                self.keyring.apply(event)
            case kind if kind in withheld.KINDS:
                self.withheld.apply(event)
                if kind in {withheld.EVICT, withheld.REPLACE}:
                    with contextlib.suppress(StoreUnavailable):
                        await self._store.revise(event.subject, withheld.gone(event))
            case adopted.KIND:
                epochs = adopted.epochs(event)
                self.adopted.apply(event)
                self.invalidations.reach(epochs)
            case known if known == UNREADABLE:
                raise ValueError("it can't be read")
            case _:
                pass

    def _adopted(self, model: str) -> Environment | None:
        """What an import says, while nobody knows of any upstream what it is."""
        return None if self.rollout.standing(model).known else self.adopted.environment(model)

    async def _end(self, event: ControlEvent) -> None:
        match event.subject:
            case "key":
                for value in invalidate.named(event):
                    self._flights.forget(key=value)
                    with contextlib.suppress(StoreUnavailable):
                        await self._store.discard(value, event.number)
            case "tag":
                for value in invalidate.named(event):
                    self._flights.forget(tag=value, tenant=invalidate.tenant_of(event))
            case _:
                self._flights.forget_all()

    async def _adopt(self) -> None:
        await self.catch_up()
        for event in self._adoptions():
            await self._journal.append(event)
        await self.catch_up()

    def _adoptions(self) -> list[ControlEvent]:
        events = []
        for name, values in self._configured.items():
            last = self.profiles.configured(name)
            if last is None or last.hash != profiles.content_hash(values):
                events.append(
                    ControlEvent(
                        kind=profiles.SET,
                        subject=name,
                        values={"values": dict(values)},
                        by=profiles.CONFIG,
                        reason="settings",
                        at=self._clock.now(),
                    )
                )
        return events
