"""Export and import of entries, line by line, without holding up anybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.core.transfer import Manifest, Reader, TransferRefused, Writer
from samewise.pipeline import adopted
from samewise.pipeline.control import Control
from samewise.pipeline.invalidate import EPOCHS
from samewise.ports import Clock, Engine, Store, StoreUnavailable

_FLUSH = 256
"""Entries after which an import waits until they are as durable as they get."""


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which entries: those that fit everything that is said. Empty: all."""

    tenant: str | None = None
    model: str | None = None
    environment: str | None = None
    tag: str | None = None

    def fit(self, entry: Entry) -> bool:
        return (
            self.tenant in {None, entry.tenant}
            and self.model in {None, entry.model}
            and self.environment in {None, entry.environment}
            and (self.tag is None or self.tag in entry.tags)
        )


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """`entries` were taken. `skipped`, by why: `expired`; `refused` (by the store); `unreachable`: the epochs
    here are past those of its key."""

    entries: int
    skipped: dict[str, int]


class Transfer:
    """`version` is told in manifests."""

    def __init__(self, *, control: Control, store: Store, engine: Engine, clock: Clock, version: str) -> None:
        self._control = control
        self._store = store
        self._engine = engine
        self._clock = clock
        self._version = version

    async def export(self, filters: Filters) -> AsyncIterator[bytes]:
        """The lines. Raises StoreUnavailable, before the first line or in between."""
        await self._store.flush()
        writer = Writer()
        yield writer.begin(self._manifest(filters))
        async for entry in self._store.scan():
            if filters.fit(entry) and entry.fresh(self._clock.now()) and not self._control.ended(entry):
                yield writer.add(entry)
        yield writer.end()

    async def take(self, lines: AsyncIterator[bytes], *, ttl: float | None, by: str) -> Imported:
        """Keep the entries of an export, for `ttl` seconds from now or as long as they have left.

        Environments and epochs come first, as one event of the journal, so that every entry that is taken can
        be found at once. Raises ProxyError 400 at the first line that isn't as it was written; what came before
        it is kept.
        """
        reader, skipped = Reader(), Counter[str]()
        manifest: Manifest | None = None
        taken = 0
        try:
            async for line in lines:
                entry = reader.read(line)
                if manifest is None and reader.manifest is not None:
                    manifest = reader.manifest
                    await self._adopt(manifest, by)
                if entry is None or manifest is None:
                    continue
                why = await self._keep(entry, manifest, ttl)
                if why is not None:
                    skipped[why] += 1
                    continue
                taken += 1
                if taken % _FLUSH == 0:
                    await self._store.flush()
            reader.close()
            await self._store.flush()
        except TransferRefused as refused:
            raise ProxyError(400, f"{refused}; {taken} entries were taken", code="invalid_export") from None
        except StoreUnavailable as failure:
            raise ProxyError(
                503,
                f"the store can't be reached ({failure.kind}) after {taken} entries; import the file again",
                code="store_unavailable",
            ) from failure
        return Imported(entries=taken, skipped=dict(skipped))

    def _manifest(self, filters: Filters) -> Manifest:
        control = self._control
        models = sorted({model for member in self._engine.members() for model in member.models})
        environments = control.adopted.all()
        for model in (*models, ""):
            active = control.rollout.active(model)
            if active is not None:
                environments[model] = active
        return Manifest(
            created=self._clock.now(),
            version=self._version,
            filters=msgspec.to_builtins(filters),
            environments=environments,
            epochs=control.invalidations.epoch_counts(),
        )

    async def _adopt(self, manifest: Manifest, by: str) -> None:
        known, count = self._control.adopted.all(), self._control.invalidations.count
        news = any(known.get(model) != environment for model, environment in manifest.environments.items())
        if news or any(count(scope, value) < number for scope, value, number in manifest.epochs):
            await self._control.record(adopted.event(manifest, by=by, at=self._clock.now()))

    async def _keep(self, entry: Entry, manifest: Manifest, ttl: float | None) -> str | None:
        """None where it was kept, else why not."""
        if not self._findable(entry, manifest):
            return "unreachable"
        now = self._clock.now()
        lasting = entry.ttl if ttl is None else now - entry.created + ttl
        kept = msgspec.structs.replace(entry, ttl=lasting, began=self._control.number)
        if not kept.fresh(now):
            return "expired"
        try:
            done = await self._store.put(kept)
        except StoreUnavailable:
            await self._store.flush()
            done = await self._store.put(kept)
        return None if done else "refused"

    def _findable(self, entry: Entry, manifest: Manifest) -> bool:
        there = {(scope, value): count for scope, value, count in manifest.epochs}
        count = self._control.invalidations.count
        profile = entry.snapshot.rpartition("@")[0]
        values = {
            "all": "",
            "model": entry.model,
            "environment": entry.environment,
            "tenant": entry.tenant,
            "profile": profile,
        }
        return all(there.get((scope, values[scope]), 0) == count(scope, values[scope]) for scope in EPOCHS)
