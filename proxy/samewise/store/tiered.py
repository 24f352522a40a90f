"""Memory in front of another store: what was read or written lately is at hand, and goes when it is discarded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from samewise.core.entry import Entry
from samewise.ports import Found, Store, StoreStatus, StoreUnavailable
from samewise.store.memory import MemoryStore


class TieredStore:
    """A Store of two tiers. The one behind decides: what it can't take may still be in memory.

    While the store behind is unavailable, `get` still answers what memory has, and raises for the rest.
    """

    def __init__(self, memory: MemoryStore, behind: Store) -> None:
        self.memory = memory
        """For who may not wait: `memory.peek`."""
        self._behind = behind

    async def get(self, key: str) -> Found | None:
        found = await self.memory.get(key)
        if found is not None:
            return found
        found = await self._behind.get(key)
        if found is not None:
            self.memory.keep(found.entry)
        return found

    async def put(self, entry: Entry) -> bool:
        """True where at least one tier keeps it."""
        kept = self.memory.keep(entry)
        try:
            return await self._behind.put(entry) or kept
        except StoreUnavailable:
            if kept:
                return True
            raise

    async def revise(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        """What the store behind has decides; memory follows. Where only memory has an entry, memory decides."""
        seen: list[tuple[Entry, Entry | None]] = []

        def watched(entry: Entry) -> Entry | None:
            new = change(entry)
            seen.append((entry, new))
            return new

        done = await self._behind.revise(key, watched)
        if not seen:
            return self.memory.revised(key, change)
        old, new = seen[-1]
        if done:
            self.memory.revised(key, lambda entry: new if entry.same(old) else entry)
        elif new is old:
            self.memory.revised(key, lambda entry: entry if entry.same(old) else change(entry))
        return done

    async def discard(self, key: str, fence: int) -> bool:
        """Raises StoreUnavailable where the store behind can't be told; memory has forgotten it by then."""
        had = self.memory.forget(key, fence)
        return await self._behind.discard(key, fence) or had

    async def reclaim(self, entries: Sequence[Entry]) -> int:
        """How many the store behind had; memory lets go of them too."""
        await self.memory.reclaim(entries)
        return await self._behind.reclaim(entries)

    def scan(self) -> AsyncIterator[Entry]:
        return self._behind.scan()

    def status(self) -> Sequence[StoreStatus]:
        return (*self.memory.status(), *self._behind.status())

    async def flush(self) -> None:
        await self._behind.flush()

    async def close(self) -> None:
        await self._behind.close()
        await self.memory.close()
