"""Entries in a Redis: one SET an entry, always with a time to live, refused where a fence is higher.

Keys are `samewise:NAMESPACE:e:{KEY}` (entries) and `samewise:NAMESPACE:f:{KEY}` (fences); the braces
keep both in one slot of a Cluster. What an ACL user needs is in docs/operations.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from samewise.core.entry import Entry, EntryRefused
from samewise.ports import Clock, Found, StoreStatus, StoreUnavailable
from samewise.store import segments
from samewise.store.behind import WriteBehind
from samewise.store.codec import Codec
from samewise.store.events import OnNotice
from samewise.store.fences import Admission
from samewise.store.redis_link import PATIENCE, RedisLink
from samewise.store.redis_script import Script

FENCE_TTL = 2 * 86_400
"""Seconds that a fence holds: longer than any request may run."""
_LONGEST = 10 * 366 * 86_400
_OFF_LOOP = 256 << 10
_BATCH = 64
_REVISIONS = 4
_STAGED = 60_000
"""Milliseconds that segments without a head last."""
_AT_ONCE = 4
"""Segments of one value that are read at the same time."""
_SLACK = 4096
"""Bytes that an entry may have beside what was asked and answered."""

_SEGMENTS = """
local base = KEYS[#KEYS]
local function each(value, act)
  local token, count = string.match(type(value) == 'string' and value or '', '^SWS1 (%x+) (%d+) %d+$')
  for at = 0, token and count - 1 or -1 do
    if not act(base .. ':' .. token .. ':' .. at) then return false end
  end
  return true
end
local function drop(value)
  each(value, function(name) redis.call('UNLINK', name) return true end)
end
local function keep(value, left)
  local kept = each(value, function(name) return redis.call('PEXPIRE', name, left + 10000) == 1 end)
  if not kept then drop(value) end
  return kept
end
"""
"""Of the head that stands for a value: its segments go, or last a little longer than it. All lie in its slot."""
_PUT = Script(
    _SEGMENTS
    + """
local fence = redis.call('GET', KEYS[2])
if fence and tonumber(fence) > tonumber(ARGV[3]) then
  drop(ARGV[1])
  return 0
end
if not keep(ARGV[1], ARGV[2]) then return -1 end
drop(redis.pcall('GET', KEYS[1]))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
)
_FREE = Script(
    _SEGMENTS
    + """
local there = redis.pcall('GET', KEYS[1])
if ARGV[1] ~= '' and there ~= ARGV[1] then return 0 end
drop(there)
return redis.call('UNLINK', KEYS[1])
"""
)
_DISCARD = Script(
    _SEGMENTS
    + """
drop(redis.pcall('GET', KEYS[1]))
local gone = redis.call('UNLINK', KEYS[1])
local fence = redis.call('GET', KEYS[2])
if not fence or tonumber(fence) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
return gone
"""
)
_REVISE = Script(
    _SEGMENTS
    + """
local there = redis.call('GET', KEYS[1])
if not there or redis.sha1hex(there) ~= ARGV[1] or not keep(ARGV[2], ARGV[3]) then
  drop(ARGV[2])
  return 0
end
drop(there)
if ARGV[2] == '' then return redis.call('UNLINK', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
)


class _Stored(NamedTuple):
    """What stands under an entry's name, and the whole value that it stands for."""

    value: bytes
    data: bytes


class RedisStore:
    """A Store on one Redis. `put` returns once the entry is queued; `get` sees what is queued."""

    def __init__(
        self,
        link: RedisLink,
        *,
        codec: Codec,
        namespace: str,
        clock: Clock,
        on_notice: OnNotice,
        max_entry: int = 8 << 20,
        segment: int = 0,
        queue: int = 4096,
    ) -> None:
        """`segment`: bytes of a stored value above which it is stored in segments of so many; 0: never."""
        self._link = link
        self._codec = codec
        self._prefix = prefix(namespace)
        self._clock = clock
        self._on_notice = on_notice
        self._admission = Admission(clock, max_entry)
        self._segment = segment
        self._reading: dict[str, asyncio.Task[Entry | None]] = {}
        self._behind = WriteBehind(self._write, entries=queue)

    async def get(self, key: str) -> Found | None:
        entry = self._behind.peek(key)
        if entry is None:
            entry = await self._shared(key)
        if entry is None or not entry.fresh(self._clock.now()):
            return None
        return Found(entry, "store")

    async def put(self, entry: Entry) -> bool:
        if not self._admission.admits(entry):
            return False
        if not self._link.available:
            raise self._untaken("circuit-open")
        if not self._behind.offer(entry):
            raise self._untaken("queue-full")
        return True

    async def discard(self, key: str, fence: int) -> bool:
        self._admission.fences.raise_to(key, fence)
        waited = self._behind.withdraw(key)
        await self._behind.written(key)  # what is on its way is there before it is taken away
        names = (self._name("e", key), self._name("f", key), self._name("s", key))
        try:
            gone = await _DISCARD.run(self._link, names, (fence, FENCE_TTL * 1000), operation="discard", insist=True)
        finally:
            self._reading.pop(key, None)
        return bool(gone) or waited

    async def reclaim(self, entries: Sequence[Entry]) -> int:
        """One command a key, since in a Cluster they lie apart. Raises StoreUnavailable."""
        mine = [entry for entry in entries if self._behind.peek(entry.key) is None]
        return sum(await asyncio.gather(*map(self._reclaim, mine)))

    async def _reclaim(self, entry: Entry) -> int:
        if 0 < self._segment < _size(entry) + _SLACK:
            return await self._free(entry.key)
        return int(await self._link.call("UNLINK", self._name("e", entry.key), operation="reclaim"))

    async def _free(self, key: str, value: bytes = b"") -> int:
        """The entry and its segments; where there is a `value`, only that one."""
        names = (self._name("e", key), self._name("s", key))
        return int(await _FREE.run(self._link, names, (value,), operation="reclaim"))

    async def revise(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        """Raises StoreUnavailable. What is put meanwhile wins."""
        await self._behind.written(key)
        for _ in range(_REVISIONS):
            stored = await self._read(key)
            entry = None if stored is None else await self._decode(key, stored.data)
            if stored is None or entry is None or not entry.fresh(self._clock.now()):
                return False
            new = change(entry)
            if new is entry:
                return False
            if await self._replace(key, stored.value, new):
                return True
        return False

    async def scan(self) -> AsyncIterator[Entry]:
        now = self._clock.now()
        names: list[str] = []
        seen: set[str] = set()
        async for name in self._link.keys(f"{self._prefix}:e:*"):
            if name not in seen:
                seen.add(name)
                names.append(name)
            if len(names) >= _BATCH:
                for entry in await self._all(names):
                    if entry.fresh(now):
                        yield entry
                names.clear()
        for entry in await self._all(names):
            if entry.fresh(now):
                yield entry

    def status(self) -> Sequence[StoreStatus]:
        return (StoreStatus(name="redis", available=self._link.available, detail=self._link.error),)

    async def flush(self) -> None:
        await self._behind.flush()

    async def written(self, key: str) -> None:
        """Return when what was put under this key is on the server, or will not be."""
        await self._behind.written(key)

    async def close(self) -> None:
        """Write what waits, for as long as the server answers; then close the connections."""
        await self._behind.flush()
        await self._link.close()

    async def _shared(self, key: str) -> Entry | None:
        """One GET for all who ask for this key at once; what is discarded meanwhile is read anew by who comes after."""
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.get_running_loop().create_task(self._look(key))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._read_by(key, done))
        return await asyncio.shield(reading)

    async def _look(self, key: str) -> Entry | None:
        stored = await self._read(key)
        return None if stored is None else await self._decode(key, stored.data)

    def _read_by(self, key: str, done: asyncio.Task[Entry | None]) -> None:
        if self._reading.get(key) is done:
            del self._reading[key]
        if not done.cancelled():
            done.exception()

    async def _read(self, key: str) -> _Stored | None:
        """What is there and whole. A value that changed while its segments were read is read once more."""
        for last in (False, True):
            value = await self._value(key)
            told = None if value is None else segments.head(value)
            if value is None or told is None:
                return None if value is None else _Stored(value, value)
            data = segments.whole(told, await self._parts(key, told))
            if data is not None:
                return _Stored(value, data)
            if last or await self._value(key) == value:
                self._count(segments.MISSING, "get")
                await self._free(key, value)
                return None
        return None

    async def _parts(self, key: str, told: segments.Head) -> list[bytes | None]:
        """The segments, as far as they are there, a few at a time."""
        parts: list[bytes | None] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while len(parts) < told.parts:
                    numbers = range(len(parts), min(len(parts) + _AT_ONCE, told.parts))
                    names = [self._segment_name(key, told.token, number) for number in numbers]
                    found = await asyncio.gather(*(self._link.call("GET", name, operation="get") for name in names))
                    parts += [part if isinstance(part, bytes) else None for part in found]
                    if None in parts:
                        break
        except TimeoutError:
            self._count("timeout", "get")
            raise StoreUnavailable("timeout", "a value in segments took too long") from None
        return parts

    async def _value(self, key: str) -> bytes | None:
        try:
            data = await self._link.call("GET", self._name("e", key), operation="get")
        except StoreUnavailable as error:
            if error.kind == "wrongtype":
                return None
            raise
        return data if isinstance(data, bytes) else None

    async def _decode(self, key: str, data: bytes) -> Entry | None:
        try:
            if len(data) > _OFF_LOOP:
                return await asyncio.to_thread(self._codec.decode, key, data)
            return self._codec.decode(key, data)
        except EntryRefused as refused:
            self._count(refused.kind, "get")
            return None

    async def _all(self, names: Sequence[str]) -> list[Entry]:
        keys = [name.rpartition(":")[2].strip("{}") for name in names]
        stored = await asyncio.gather(*(self._read(key) for key in keys))
        found = [(key, each.data) for key, each in zip(keys, stored, strict=True) if each is not None]
        decoded = [await self._decode(key, data) for key, data in found]
        return [entry for entry in decoded if entry is not None]

    async def _write(self, entry: Entry) -> bool:
        left = min(entry.created + entry.ttl - self._clock.now(), entry.ttl, _LONGEST)
        if left <= 0 or not self._admission.fences.admits(entry.key, entry.began):
            return False
        names = (self._name("e", entry.key), self._name("f", entry.key), self._name("s", entry.key))
        try:
            value = await self._staged(entry)
            values = (value, max(1, int(left * 1000)), entry.began)
            done = int(await _PUT.run(self._link, names, values, operation="put"))
            if done < 0:
                self._count(segments.MISSING, "put")
            return done > 0
        except StoreUnavailable as error:
            if error.kind == "circuit-open":
                self._count(error.kind, "put")
            raise

    async def _staged(self, entry: Entry) -> bytes:
        """What goes under the entry's name. Its segments, where it is long, are on the server by then, for a minute."""
        if _size(entry) > _OFF_LOOP:
            data = await asyncio.to_thread(self._codec.encode, entry)
        else:
            data = self._codec.encode(entry)
        stored = segments.cut(data, self._segment)
        for number, part in enumerate(stored.parts):
            name = self._segment_name(entry.key, stored.token, number)
            await self._link.call("SET", name, part, "PX", _STAGED, operation="put")
        return stored.value

    async def _replace(self, key: str, there: bytes, new: Entry | None) -> bool:
        """In place of exactly these bytes."""
        digest = hashlib.sha1(there, usedforsecurity=False).hexdigest()
        value, left = b"", 0.0
        if new is not None:
            left = min(new.created + new.ttl - self._clock.now(), new.ttl, _LONGEST)
            value = await self._staged(new)
        names = (self._name("e", key), self._name("s", key))
        return bool(await _REVISE.run(self._link, names, (digest, value, max(1, int(left * 1000))), operation="revise"))

    def _name(self, kind: str, key: str) -> str:
        return f"{self._prefix}:{kind}:{{{key}}}"

    def _segment_name(self, key: str, token: str, number: int) -> str:
        return f"{self._name('s', key)}:{token}:{number}"

    def _untaken(self, kind: str) -> StoreUnavailable:
        self._count(kind, "put")
        return StoreUnavailable(kind)

    def _count(self, error: str, operation: str) -> None:
        self._on_notice("store-error", {"tier": "store", "error": error, "operation": operation})


def _size(entry: Entry) -> int:
    return len(entry.request) + entry.answer.size()


def prefix(namespace: str) -> str:
    """Raises ValueError for a namespace that would mean something to SCAN or to a Cluster."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", namespace) is None:
        raise ValueError(f"namespace {namespace!r} must be 1 to 64 letters, digits, dots, dashes or underscores")
    return f"samewise:{namespace}"
