"""Control events and records that all proxies on one Redis share.

The journal is one list, only ever appended to: an event's number is its place in it, which makes
`RPUSH` the whole of an atomic append. Word of it goes round by pub/sub; proxies look too, for words
can get lost, and a user may be forbidden to hear them. A server that lost the journal (restarted
empty, failed over to an older replica, evicted it) gets it back from the proxies that still know it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from samewise.ports import ControlEvent
from samewise.store.codec import Codec
from samewise.store.event_codec import decode, encode
from samewise.store.redis import prefix
from samewise.store.redis_channel import RedisChannel
from samewise.store.redis_link import RedisLink
from samewise.store.redis_script import Script
from samewise.store.wake import Watch

_APPEND = Script("""
if redis.call('LLEN', KEYS[1]) < tonumber(ARGV[2]) then return -1 end
local number = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.pcall('PUBLISH', ARGV[3], number)
return number
""")
_RESTORE = Script("""
local there = redis.call('LRANGE', KEYS[1], 0, -1)
if #there >= #ARGV then return 0 end
local prefix = true
for i = 1, #there do if there[i] ~= ARGV[i] then prefix = false end end
if prefix then
  for i = #there + 1, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
else
  redis.call('DEL', KEYS[1])
  for i = 1, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
  for i = 1, #there do redis.call('RPUSH', KEYS[1], there[i]) end
end
return 1
""")
_ADD = Script("""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[1])
local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[3])
if over > 0 then
  local old = redis.call('ZPOPMIN', KEYS[2], over)
  for i = 1, #old, 2 do redis.call('HDEL', KEYS[1], old[i]) end
end
return 1
""")


class RedisJournal:
    """A Journal. It remembers the raw events that it saw, so that it can restore them."""

    def __init__(self, link: RedisLink, channel: RedisChannel, *, namespace: str) -> None:
        self._link = link
        self._name = f"{prefix(namespace)}:journal"
        self._known: list[bytes] = []
        self._watch = Watch(self._look, told=lambda: channel.hears)
        channel.listen(self._name, lambda _: self._watch.wake())

    async def append(self, event: ControlEvent) -> ControlEvent:
        data = encode(event)
        number = await self._push(data, len(self._known))
        if number < 0:
            await self._restore()
            number = await self._push(data, 0)
        if number == len(self._known) + 1:
            self._known.append(data)
        self._watch.wake()
        return msgspec.structs.replace(event, number=number)

    async def since(self, number: int) -> Sequence[ControlEvent]:
        """As the port says; where the server's journal was begun anew by others, all events that are there now."""
        start = min(max(0, number), len(self._known))
        values = await self._from(start)
        if max(0, start - 1) + len(values) < len(self._known):
            await self._restore()
            values = await self._from(start)
        if start > 0 and values[:1] != self._known[start - 1 : start]:
            self._known = await self._from(0)
            return _numbered(self._known, 0)
        values = values[start > 0 :]
        if start + len(values) > len(self._known):
            self._known[start:] = values
        return [event for event in _numbered(values, start) if event.number > number]

    def changes(self) -> AsyncIterator[None]:
        return self._watch.listen()

    async def close(self) -> None:
        self._watch.close()

    async def _look(self) -> int:
        length: int = await self._link.call("LLEN", self._name, operation="journal")
        if length < len(self._known):
            await self._restore()
            return -1
        return length

    async def _from(self, start: int) -> list[bytes]:
        """The raw events after the first `start`, and the one before them, where there is one."""
        values: list[bytes] = await self._link.call(
            "LRANGE", self._name, max(0, start - 1), -1, operation="journal", insist=True
        )
        return values

    async def _restore(self) -> None:
        await _RESTORE.run(self._link, (self._name,), self._known, operation="journal", insist=True)

    async def _push(self, data: bytes, known: int) -> int:
        number: int = await _APPEND.run(
            self._link, (self._name,), (data, known, self._name), operation="journal", insist=True
        )
        return number


class RedisRecords:
    """Records: a hash of values and an order for each kind. Bounded by `keep`; sealed where a secret is set."""

    def __init__(self, link: RedisLink, *, namespace: str, codec: Codec) -> None:
        self._link = link
        self._prefix = f"{prefix(namespace)}:r"
        self._codec = codec

    async def add(self, kind: str, identity: str, value: bytes, *, keep: int) -> None:
        sealed = self._codec.seal(value, _context(kind, identity))
        names = [self._name(kind, part) for part in ("v", "o", "n")]
        await _ADD.run(self._link, names, (identity, sealed, keep), operation="record")

    async def get(self, kind: str, identity: str) -> bytes | None:
        value = await self._link.call("HGET", self._name(kind, "v"), identity, operation="record")
        return self._open(kind, identity, value)

    async def latest(self, kind: str, limit: int) -> Sequence[tuple[str, bytes]]:
        if limit <= 0:
            return []
        order = await self._link.call("ZREVRANGE", self._name(kind, "o"), 0, limit - 1, operation="record")
        if not order:
            return []
        values = await self._link.call("HMGET", self._name(kind, "v"), *order, operation="record")
        found = []
        for raw, value in zip(order, values, strict=True):
            opened = self._open(kind, raw.decode(), value)
            if opened is not None:
                found.append((raw.decode(), opened))
        return found

    def _open(self, kind: str, identity: str, value: bytes | None) -> bytes | None:
        try:
            return None if value is None else self._codec.open(value, _context(kind, identity))
        except ValueError:
            return None

    def _name(self, kind: str, part: str) -> str:
        return f"{self._prefix}:{{{kind}}}:{part}"


def _numbered(values: Sequence[bytes], start: int) -> list[ControlEvent]:
    return [decode(value, at) for at, value in enumerate(values, start + 1)]


def _context(kind: str, identity: str) -> bytes:
    return f"record {kind} {identity}".encode()
