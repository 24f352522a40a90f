"""Long values in segments: whole or not at all, and gone when the entry goes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core import codec
from samewise.core.entry import Entry
from samewise.ports import StoreUnavailable
from samewise.store import segments, sqlite_threads
from samewise.store.factory import Stores
from tests.store.conftest import Notices, Opener
from tests.support.clock import ManualClock
from tests.support.entries import NOW, entries, key_of, make_entry
from tests.support.patience import ENOUGH
from tests.support.redis import RedisServer, documented_rights

SEGMENT = 1000
LONG = 10 * SEGMENT


def noise(name: str, size: int = LONG) -> bytes:
    """Bytes that follow from the name and that nothing compresses."""
    return hashlib.shake_256(name.encode()).digest(size)


def long_entry(name: str = "a", said: str = "", **fields: Any) -> Entry:
    return make_entry(name, body=noise(f"{name} {said}"), **fields)


# --- the rule ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(data=st.binary(max_size=400), size=st.integers(0, 100), data_too=st.data())
def test_what_was_cut_is_whole_again_only_with_every_segment(data: bytes, size: int, data_too: st.DataObject) -> None:
    cut = segments.cut(data, size)
    if not cut.parts:
        assert cut.value == data
        assert not 0 < size < len(data)
        return
    told = segments.head(cut.value)
    assert told is not None
    assert (told.token, told.parts, told.size) == (cut.token, len(cut.parts), len(data))
    assert max(map(len, cut.parts)) <= size
    assert segments.whole(told, cut.parts) == data
    lost = data_too.draw(st.integers(0, len(cut.parts) - 1))
    for other in (None, cut.parts[lost] + b"x", cut.parts[lost][:-1]):
        assert segments.whole(told, [*cut.parts[:lost], other, *cut.parts[lost + 1 :]]) is None
    assert segments.whole(told, cut.parts[:lost]) is None


@settings(deadline=None)
@given(entries, st.binary(max_size=80))
def test_an_entry_is_never_taken_for_a_head(entry: Entry, other: bytes) -> None:
    assert segments.head(codec.encode(entry)) is None
    assert segments.head(b"SWS1 " + other) is None or re.fullmatch(rb"[0-9a-f]{32} \d+ \d+", other)


# --- both stores ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis", "cluster"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Place:
    """Where a store keeps its values, seen from outside. Segments come in the order of their numbers."""

    def __init__(self, folder: Path, server: RedisServer | None, *, cluster: bool = False) -> None:
        self.server = server
        self._file = folder / "s.db"
        self._cluster = cluster

    @property
    def url(self) -> str:
        if self.server is None:
            return f"sqlite:///{self._file}"
        return f"redis+cluster://127.0.0.1:{self.server.port}" if self._cluster else self.server.url

    def segments(self) -> list[bytes]:
        if self.server is None:
            return [bytes(row[0]) for row in self.on_file("SELECT value FROM segments ORDER BY id, part")]
        return [self.server.command("GET", name) for name in names(self.server)]

    def harm(self, number: int, how: str) -> None:
        other = noise("other", SEGMENT)
        if self.server is not None:
            name = names(self.server)[number]
            words = {"missing": ("DEL", name), "cut": ("SET", name, other[1:]), "another's": ("SET", name, other)}
            self.server.command(*words[how])
            return
        done = {
            "missing": "DELETE FROM segments WHERE part = ?",
            "cut": "UPDATE segments SET value = substr(value, 2) WHERE part = ?",
            "another's": f"UPDATE segments SET value = x'{other.hex()}' WHERE part = ?",
        }
        self.on_file(done[how], number)

    def on_file(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._file)) as connection, connection:
            return connection.execute(statement, values).fetchall()


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    servers = {"redis": "redis_server", "cluster": "redis_cluster"}
    server: RedisServer | None = request.getfixturevalue(servers[kind]) if kind in servers else None
    return Place(tmp_path, server, cluster=kind == "cluster")


@pytest.fixture
def again(place: Place, open_at: Opener) -> Opener:
    async def open_one(**settings: Any) -> Stores:
        return await open_at(place.url, **{"segment": SEGMENT, "namespace": "t", **settings})

    return open_one


@pytest.fixture
async def stores(again: Opener) -> Stores:
    return await again()


def names(server: RedisServer) -> list[str]:
    reply = server.command("KEYS", "samewise:t:s:*").decode()
    found = [line for line in reply.split("\r\n") if line.startswith("samewise:")]
    return sorted(found, key=lambda name: (name.rpartition(":")[0], int(name.rpartition(":")[2])))


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def stored(stores: Stores, entry: Entry) -> Entry:
    assert await stores.store.put(entry)
    await stores.store.flush()
    return entry


async def found(stores: Stores, key: str) -> Entry | None:
    got = await stores.store.get(key)
    return None if got is None else got.entry


async def test_a_long_value_comes_back_whole_and_a_short_one_has_no_segments(
    stores: Stores, again: Opener, place: Place
) -> None:
    short = await stored(stores, make_entry("short"))
    assert len(place.segments()) == 0
    entry = await stored(stores, long_entry())
    assert len(place.segments()) == -(-len(codec.encode(entry)) // SEGMENT) == 11
    other = await again()
    assert await found(other, entry.key) == entry
    assert await found(other, short.key) == short
    assert sorted([each.key async for each in other.store.scan()]) == sorted([entry.key, short.key])


async def test_segments_off_or_of_another_size_read_what_is_there_all_the_same(
    stores: Stores, again: Opener, place: Place
) -> None:
    entry = await stored(stores, long_entry())
    off = await again(segment=0)
    assert await found(off, entry.key) == entry
    other = await stored(off, long_entry(said="in one piece"))
    assert await found(stores, entry.key) == other
    assert len(place.segments()) == 0


@pytest.mark.parametrize("ended", ["discarded", "reclaimed", "revised away", "replaced by a short one"])
async def test_segments_go_when_the_entry_goes(stores: Stores, place: Place, ended: str) -> None:
    entry = await stored(stores, long_entry())
    kept = await stored(stores, long_entry("kept"))
    match ended:
        case "discarded":
            assert await stores.store.discard(entry.key, 1)
        case "reclaimed":
            assert await stores.store.reclaim([entry]) == 1
        case "revised away":
            assert await stores.store.revise(entry.key, lambda entry: None)
        case _:
            await stored(stores, make_entry("a"))
    assert len(place.segments()) == 11
    assert await found(stores, kept.key) == kept
    assert (await found(stores, entry.key) is None) is (ended != "replaced by a short one")


async def test_another_writing_of_an_entry_leaves_nothing_of_the_one_before(stores: Stores, place: Place) -> None:
    for said in ("one", "two", "three"):
        entry = await stored(stores, long_entry(said=said))
        assert await found(stores, entry.key) == entry
        assert len(place.segments()) == 11
    changed = msgspec.structs.replace(entry, verified=3)
    assert await stores.store.revise(entry.key, lambda _: changed)
    assert await found(stores, entry.key) == changed
    assert len(place.segments()) == 11


async def test_a_fill_that_began_before_the_fence_leaves_no_segments(
    stores: Stores, again: Opener, place: Place
) -> None:
    await stores.store.discard(key_of("a"), 5)
    other = await again()
    await other.store.put(long_entry(began=4))
    await other.store.flush()
    assert await found(stores, key_of("a")) is None
    assert len(place.segments()) == 0


@pytest.mark.parametrize("how", ["missing", "cut", "another's"])
async def test_a_value_with_a_segment_that_is_not_its_own_is_a_miss_and_counted(
    place: Place, again: Opener, notices: Notices, how: str
) -> None:
    stores = await again()
    entry = await stored(stores, long_entry())
    place.harm(3, how)
    assert await found(stores, entry.key) is None
    assert notices.errors() == ["checksum" if how == "another's" else "segment"]
    anew = await stored(stores, long_entry(said="anew"))
    assert await found(stores, entry.key) == anew
    assert len(place.segments()) == 11


async def test_sealing_covers_every_segment(place: Place, again: Opener, notices: Notices) -> None:
    sealed = await again(secrets=["s1"])
    text = "the patient's name is Rosalind; "
    entry = await stored(sealed, make_entry("a", body=text.encode() * 40 + noise("a")))
    there = b"".join(place.segments())
    assert len(there) > LONG
    assert b"Rosalind" not in there
    assert noise("a")[:64] not in there
    assert await found(await again(secrets=["s2", "s1"]), entry.key) == entry
    assert await found(await again(secrets=["s2"]), entry.key) is None
    assert notices.errors() == ["sealed"]


async def test_whoever_reads_while_others_write_gets_one_writing_whole_or_nothing(
    stores: Stores, again: Opener, place: Place
) -> None:
    writings = [long_entry(said=str(number), verified=number) for number in range(30)]
    whole = {entry.answer.body for entry in writings}
    reader, done = await again(), asyncio.Event()
    seen: set[bytes] = set()
    wrong: set[bytes] = set()

    async def write() -> None:
        for number, entry in enumerate(writings):
            await stored(stores, entry)
            if number % 10 == 9:
                seen.clear()
                await until(lambda: bool(seen))
        done.set()

    async def read() -> None:
        while not done.is_set():
            entry = await found(reader, key_of("a"))
            if entry is not None:
                seen.add(entry.answer.body)
                wrong.update({entry.answer.body} - whole)
            await asyncio.sleep(0)

    await asyncio.gather(write(), read(), read())
    assert wrong == set()
    assert await found(reader, key_of("a")) == writings[-1]
    assert len(place.segments()) == 11


# --- a file --------------------------------------------------------------------------------------------


async def test_expired_segments_go_with_the_file_s_entry(
    open_at: Opener, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_threads, "_TICK", 0.1)
    place = Place(tmp_path, None)
    stores = await open_at(place.url, segment=SEGMENT)
    await stored(stores, long_entry(ttl=5.0))
    clock.advance(10)
    left = "SELECT (SELECT count(*) FROM segments) + (SELECT bytes FROM totals)"
    await until(lambda: place.on_file(left) == [(0,)])


async def test_what_a_long_value_takes_counts_for_the_bounds_of_the_file(open_at: Opener, tmp_path: Path) -> None:
    place = Place(tmp_path, None)
    await stored(await open_at(place.url, segment=SEGMENT), long_entry())
    assert place.on_file("SELECT entries, bytes > ? FROM totals", LONG) == [(1, 1)]


async def test_a_file_that_knows_no_segments_yet_learns_them(open_at: Opener, tmp_path: Path) -> None:
    place = Place(tmp_path, None)
    stores = await open_at(place.url, segment=0)
    entry = await stored(stores, make_entry("a"))
    await stores.close()
    for statement in ("DROP TRIGGER segments_go", "DROP TRIGGER segments_change", "DROP TABLE segments"):
        place.on_file(statement)
    later = await open_at(place.url, segment=SEGMENT)
    assert await found(later, entry.key) == entry
    long = await stored(later, long_entry("b"))
    assert await found(later, long.key) == long


# --- Redis ---------------------------------------------------------------------------------------------


async def test_segments_outlive_their_head_a_little_and_lie_in_its_slot(
    open_at: Opener, redis_server: RedisServer
) -> None:
    stores = await open_at(redis_server.url, segment=SEGMENT, namespace="t")
    entry = await stored(stores, long_entry(ttl=100.0))
    left = {name: int(redis_server.command("PTTL", name)[1:]) for name in names(redis_server)}
    head = int(redis_server.command("PTTL", f"samewise:t:e:{{{entry.key}}}")[1:])
    assert len(left) == 11
    assert all(head < each <= head + 20_000 for each in left.values())
    assert all(f"{{{entry.key}}}" in name for name in left)


async def test_a_writing_that_never_ended_is_nobodys_and_does_not_last(
    open_at: Opener, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = await open_at(redis_server.url, segment=SEGMENT, namespace="t")
    before = await stored(stores, long_entry())
    link = stores.store._link  # type: ignore[attr-defined]
    call, sent = link.call, []

    async def cut_off(*words: Any, **options: Any) -> Any:
        sent.append(words[0])
        if sent.count("SET") > 4:
            raise StoreUnavailable("refused")
        return await call(*words, **options)

    monkeypatch.setattr(link, "call", cut_off)
    await stores.store.put(long_entry(said="half"))
    await stores.store.flush()
    monkeypatch.undo()
    assert await found(stores, before.key) == before
    staged = [name for name in names(redis_server) if int(redis_server.command("PTTL", name)[1:]) <= 60_000]
    assert len(staged) == 4
    assert len(names(redis_server)) == 11 + 4


async def test_what_is_left_of_a_broken_value_is_freed(open_at: Opener, redis_server: RedisServer) -> None:
    stores = await open_at(redis_server.url, segment=SEGMENT, namespace="t")
    entry = await stored(stores, long_entry())
    redis_server.command("DEL", names(redis_server)[5])
    assert await found(stores, entry.key) is None
    assert names(redis_server) == []
    assert redis_server.command("EXISTS", f"samewise:t:e:{{{entry.key}}}") == b":0\r\n"


async def test_no_command_carries_more_than_a_segment(open_at: Opener, redis_server: RedisServer) -> None:
    stores = await open_at(redis_server.url, segment=SEGMENT, namespace="t")
    entry = await stored(stores, long_entry(created=NOW))
    sizes = {name: int(redis_server.command("STRLEN", name)[1:]) for name in names(redis_server)}
    assert max(sizes.values()) == SEGMENT
    assert int(redis_server.command("STRLEN", f"samewise:t:e:{{{entry.key}}}")[1:]) < 100


@pytest.mark.parametrize("cluster", [False, True])
async def test_a_user_with_the_documented_commands_alone_is_enough(
    open_at: Opener, request: pytest.FixtureRequest, notices: Notices, cluster: bool
) -> None:
    server: RedisServer = request.getfixturevalue("redis_cluster" if cluster else "redis_server")
    server.command("ACL", "SETUSER", "sw", "on", ">pw", *documented_rights(cluster=cluster))
    url = f"redis{'+cluster' if cluster else ''}://sw:pw@127.0.0.1:{server.port}"
    stores = await open_at(url, segment=SEGMENT)
    for said in ("one", "two"):
        entry = await stored(stores, long_entry(said=said))
        assert await found(stores, entry.key) == entry
    assert await stores.store.reclaim([entry]) == 1
    await stored(stores, entry)
    assert await stores.store.discard(entry.key, 1)
    assert notices.errors() == []
