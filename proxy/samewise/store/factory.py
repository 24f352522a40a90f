"""From `[store] url` to the stores behind it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from samewise.ports import Clock, Journal, Leases, Records, Store, StoreUnavailable
from samewise.store import redis_url
from samewise.store.codec import Codec
from samewise.store.events import OnNotice, ignore
from samewise.store.examine import redis_facts
from samewise.store.memory import MemoryStore
from samewise.store.memory_journal import MemoryJournal, MemoryRecords
from samewise.store.redis import RedisStore, prefix
from samewise.store.redis_channel import RedisChannel
from samewise.store.redis_journal import RedisJournal, RedisRecords
from samewise.store.redis_leases import RedisLeases
from samewise.store.redis_link import RedisLink
from samewise.store.sqlite import SqliteStore
from samewise.store.sqlite_journal import SqliteJournal, SqliteRecords
from samewise.store.tiered import TieredStore

LEASE_TIMEOUT = 1.0
"""Seconds: who waits for an upstream can wait for a lease; a store that is down was noticed before."""
LEASE_CONNECTIONS = 4
SCHEMES = ("memory", "sqlite", *redis_url.SCHEMES)


async def _nothing_to_tell() -> dict[str, Any]:
    return {}


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """What one URL gives. `memory` is the tier in front, None where it is off; `leases` are there where
    other processes may share the store."""

    store: Store
    journal: Journal
    records: Records
    memory: MemoryStore | None = None
    leases: Leases | None = None
    examine: Callable[[], Awaitable[dict[str, Any]]] = _nothing_to_tell
    """What the store behind says of itself to who looks for trouble (see `examine`)."""

    async def close(self) -> None:
        if self.leases is not None:
            await self.leases.close()
        await self.journal.close()
        await self.store.close()


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What all stores are told."""

    memory_bytes: int
    max_entry: int
    segment: int
    timeout: float
    codec: Codec
    namespace: str
    clock: Clock
    on_notice: OnNotice


def check_url(url: str) -> None:
    """Raises ValueError, with one line that says what to write instead, where no store can come of it."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        sqlite_path(url)
        _sqlite_bounds(url)
    elif scheme in redis_url.SCHEMES:
        redis_url.parse(url)
    elif scheme != "memory" or url not in ("memory://", "memory:///"):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"{scheme!r} is no store; use one of {known}")


async def open_store(
    url: str,
    *,
    memory_bytes: int = 256 << 20,
    max_entry: int = 8 << 20,
    segment: int = 1 << 20,
    timeout: float = 0.1,  # noqa: ASYNC109
    secrets: Sequence[str] = (),
    namespace: str = "default",
    clock: Clock,
    on_notice: OnNotice = ignore,
) -> Stores:
    """The stores of a URL, within a few seconds whatever state its server or file is in.

    A store that can't be reached is told of (`store-error`) and mends itself. Raises ValueError,
    with a line to show, only for settings that no waiting can mend. `memory_bytes` 0: no memory tier;
    `segment`: bytes of a segment of a longer value, 0: values are never stored in segments.
    """
    check_url(url)
    prefix(namespace)
    codec = Codec(secrets=tuple(filter(None, secrets)), limit=4 * max_entry + (16 << 20))
    common = Common(
        memory_bytes=memory_bytes,
        max_entry=max_entry,
        segment=segment,
        timeout=timeout,
        codec=codec,
        namespace=namespace,
        clock=clock,
        on_notice=on_notice,
    )
    match url.partition("://")[0]:
        case "memory":
            return _open_memory(common)
        case "sqlite":
            return await _open_sqlite(url, common)
        case _:
            return await _open_redis(url, common)


def sqlite_path(url: str) -> Path:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`. Raises ValueError."""
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    if parts.netloc or not name:
        raise ValueError("sqlite needs a path after three slashes (relative) or four (absolute): sqlite:///samewise.db")
    path = Path(name).absolute()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist; make it, or name another")
    return path


def _sqlite_bounds(url: str) -> Mapping[str, int]:
    bounds = {}
    for name, (value, *_) in parse_qs(urlsplit(url).query, keep_blank_values=True).items():
        if name not in ("max_bytes", "max_entries"):
            raise ValueError(f"unknown option {name!r}; sqlite takes max_bytes and max_entries")
        if not value.isdecimal() or int(value) == 0:
            raise ValueError(f"{name} must be a whole number above 0")
        bounds[name] = int(value)
    return bounds


def _memory(common: Common) -> MemoryStore:
    return MemoryStore(common.memory_bytes, clock=common.clock, max_entry=common.max_entry, on_notice=common.on_notice)


def _in_front(store: Store, common: Common) -> tuple[Store, MemoryStore | None]:
    if common.memory_bytes <= 0:
        return store, None
    memory = _memory(common)
    return TieredStore(memory, store), memory


def _open_memory(common: Common) -> Stores:
    if common.memory_bytes <= 0:
        raise ValueError("memory:// with memory = 0 keeps nothing; give it some memory, or turn the cache off")
    memory = _memory(common)
    return Stores(store=memory, journal=MemoryJournal(), records=MemoryRecords(), memory=memory)


async def _open_sqlite(url: str, common: Common) -> Stores:
    behind = SqliteStore(
        sqlite_path(url),
        codec=common.codec,
        clock=common.clock,
        on_notice=common.on_notice,
        timeout=common.timeout,
        max_entry=common.max_entry,
        segment=common.segment,
        **_sqlite_bounds(url),
    )
    await behind.ready()
    store, memory = _in_front(behind, common)
    return Stores(
        store=store,
        journal=SqliteJournal(behind.writer, behind.reader),
        records=SqliteRecords(behind.writer, behind.reader, common.codec),
        memory=memory,
    )


async def _open_redis(url: str, common: Common) -> Stores:
    link = RedisLink(redis_url.parse(url), timeout=common.timeout, clock=common.clock, on_notice=common.on_notice)
    behind = RedisStore(
        link,
        codec=common.codec,
        namespace=common.namespace,
        clock=common.clock,
        on_notice=common.on_notice,
        max_entry=common.max_entry,
        segment=common.segment,
    )
    with contextlib.suppress(StoreUnavailable):
        await link.call("PING")
    patient = RedisLink(
        msgspec.structs.replace(link.target, connections=LEASE_CONNECTIONS),
        timeout=max(common.timeout, LEASE_TIMEOUT),
        clock=common.clock,
        on_notice=ignore,
    )
    channel = RedisChannel(link.target)
    journal = RedisJournal(link, channel, namespace=common.namespace)
    leases = RedisLeases(patient, channel, namespace=common.namespace, written=behind.written)
    leases.open()
    store, memory = _in_front(behind, common)
    return Stores(
        leases=leases,
        store=store,
        journal=journal,
        records=RedisRecords(link, namespace=common.namespace, codec=common.codec),
        examine=functools.partial(redis_facts, link, common.clock),
        memory=memory,
    )
