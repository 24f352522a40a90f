"""A SQLite file that is killed, locked, full, corrupt or foreign is survived, and nothing in it is ever half."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from samewise.ports import ControlEvent, StoreUnavailable
from samewise.store import sqlite, sqlite_threads
from samewise.store.factory import check_url, open_store, sqlite_path
from tests.store.conftest import Notices, Opener
from tests.support.clock import ManualClock
from tests.support.entries import key_of, make_entry
from tests.support.patience import ENOUGH

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at every second is looked at ten times as often."""
    monkeypatch.setattr(sqlite_threads, "_TICK", 0.1)


def spawn(url: str, first: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.writer", url, str(first), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."})


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, "it ended by itself"
    return said


def check_file(path: Path) -> None:
    """The file is whole, and its totals are those of its rows."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    counted = connection.execute("SELECT count(*), coalesce(sum(size), 0) FROM entries").fetchone()
    assert connection.execute("SELECT entries, bytes FROM totals").fetchone() == counted
    bodies = connection.execute("SELECT count(*), coalesce(sum(length(value)), 0) FROM bodies").fetchone()
    assert bodies == counted
    connection.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not condition():  # noqa: ASYNC110 - what a thread does tells nobody
            await asyncio.sleep(0.02)


async def killed_under_load(path: Path, open_at: Opener, rounds: int) -> None:
    url, done = f"sqlite:///{path}", 0
    for _ in range(rounds):
        process = spawn(url, done)
        while int((told := line(process)).split()[1]) < done + 200:
            assert told.startswith("done"), told
        process.kill()
        rest = process.communicate()[0].split("\n")
        done = max([int(told.split()[1])] + [int(one.split()[1]) for one in rest if one.startswith("done ")])
    check_file(path)
    stores = await open_at(url)
    for number in range(done):
        found = await stores.store.get(key_of(f"n{number}"))
        assert found is not None
        assert found.entry.answer.body == b"%d " % number * 300


async def test_killed_under_load_it_has_all_that_was_flushed_and_nothing_half(
    tmp_path: Path, open_at: Opener, notices: Notices
) -> None:
    await killed_under_load(tmp_path / "s.db", open_at, 3)
    assert notices.errors() == []


@pytest.mark.slow
async def test_killed_again_and_again_under_load(tmp_path: Path, open_at: Opener, notices: Notices) -> None:
    await killed_under_load(tmp_path / "s.db", open_at, 12)
    assert notices.errors() == []


async def test_a_disk_that_takes_no_more_is_counted_and_what_was_there_stays(tmp_path: Path, open_at: Opener) -> None:
    path = tmp_path / "s.db"
    process = spawn(f"sqlite:///{path}", 0, str(400_000))
    told = [line(process)]
    while not told[-1].startswith("errors"):
        told.append(line(process))
        assert len(told) < 1000
    process.kill()
    process.communicate()
    assert set(told[-1].split()[1:]) <= {"io", "full"}
    done = max(int(one.split()[1]) for one in told if one.startswith("done"))
    check_file(path)
    stores = await open_at(f"sqlite:///{path}")
    assert await stores.store.get(key_of("n0")) is not None
    assert await stores.store.get(key_of(f"n{done - 1}")) is not None


async def test_two_processes_write_one_file(tmp_path: Path, open_at: Opener) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    processes = [spawn(url, first) for first in (0, 100_000)]
    for process in processes:
        while not line(process).startswith("done"):
            pass
    stores = await open_at(url)
    assert await stores.store.get(key_of("n0")) is not None
    assert await stores.store.get(key_of("n100000")) is not None
    for process in processes:
        process.kill()
        process.communicate()
    check_file(tmp_path / "s.db")


async def test_while_another_process_writes_reads_go_on_and_puts_wait(
    tmp_path: Path, open_at: Opener, notices: Notices
) -> None:
    stores = await open_at(f"sqlite:///{tmp_path}/s.db")
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await stores.store.put(make_entry("b"))
    assert await stores.store.get(key_of("a")) is not None
    assert await stores.store.get(key_of("b")) is not None
    other.execute("ROLLBACK")
    await stores.store.flush()
    assert notices.errors() == []
    other.close()
    check_file(tmp_path / "s.db")


async def test_a_file_locked_as_a_whole_costs_a_bounded_time_and_is_used_when_it_is_free(
    tmp_path: Path, clock: ManualClock, notices: Notices
) -> None:
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None, timeout=0)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("CREATE TABLE t(x)")
    async with asyncio.timeout(ENOUGH):
        stores = await open_store(
            f"sqlite:///{tmp_path}/s.db", clock=clock, on_notice=notices, memory_bytes=0, timeout=ENOUGH / 2
        )
        with pytest.raises(StoreUnavailable):
            await stores.store.get(key_of("a"))
    assert not stores.store.status()[0].available
    other.close()
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    assert (await stores.store.get(key_of("a"))) is not None
    await stores.close()


@pytest.mark.parametrize("word", ["corrupt", "version"])
async def test_an_unusable_file_is_set_aside_under_a_name_that_is_told(
    tmp_path: Path, open_at: Opener, notices: Notices, word: str
) -> None:
    path = tmp_path / "s.db"
    if word == "corrupt":
        path.write_bytes(b"this is no database" * 1000)
    else:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE schema(version)")
        connection.execute("INSERT INTO schema VALUES (999)")
        connection.commit()
        connection.close()
    before = path.read_bytes()
    stores = await open_at(f"sqlite:///{path}")
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    assert await stores.store.get(key_of("a")) is not None
    (told,) = [attributes for kind, attributes in notices.all if kind == "store-aside"]
    assert Path(told["path"]).read_bytes() == before
    assert f".{word}-" in told["path"]
    assert notices.errors() == [word]


async def test_pages_that_are_overwritten_are_noticed_and_the_file_is_begun_anew(
    tmp_path: Path, open_at: Opener, notices: Notices, clock: ManualClock
) -> None:
    path = tmp_path / "s.db"
    stores = await open_store(f"sqlite:///{path}", clock=clock, memory_bytes=0)
    for n in range(500):
        await stores.store.put(make_entry(f"n{n}"))
    await stores.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 14)
        file.write(os.urandom(size - 4096 * 14))
    stores = await open_at(f"sqlite:///{path}")
    for n in range(500):
        try:
            found = await stores.store.get(key_of(f"n{n}"))
        except StoreUnavailable:
            continue
        if found is not None:
            assert found.entry == make_entry(f"n{n}")
    await until(lambda: stores.store.status()[0].entries == 0)
    await stores.store.put(make_entry("after"))
    await stores.store.flush()
    assert notices.count("store-aside") == 1
    check_file(path)


async def test_a_flipped_byte_in_a_value_is_a_miss(tmp_path: Path, open_at: Opener, notices: Notices) -> None:
    path = tmp_path / "s.db"
    stores = await open_at(f"sqlite:///{path}")
    await stores.store.put(make_entry("a"))
    await stores.store.put(make_entry("b"))
    await stores.store.flush()
    connection = sqlite3.connect(path)
    (value,) = connection.execute(
        "SELECT value FROM bodies JOIN entries USING (id) WHERE key = ?", (key_of("a"),)
    ).fetchone()
    edited = value[:60] + bytes((value[60] ^ 1,)) + value[61:]
    connection.execute("UPDATE bodies SET value = ? WHERE value = ?", (edited, value))
    connection.commit()
    connection.close()
    assert await stores.store.get(key_of("a")) is None
    assert await stores.store.get(key_of("b")) is not None
    assert notices.errors() == ["checksum"]


async def test_a_file_that_is_deleted_under_it_is_begun_anew(tmp_path: Path, open_at: Opener) -> None:
    path = tmp_path / "s.db"
    stores = await open_at(f"sqlite:///{path}")
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    for file in tmp_path.iterdir():
        file.unlink()
    await until(path.exists)
    await until(lambda: stores.store.status()[0].entries == 0)
    await stores.store.put(make_entry("b"))
    await stores.store.flush()
    check_file(path)


async def test_beyond_its_bound_the_least_recently_used_go(
    tmp_path: Path, open_at: Opener, clock: ManualClock, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_TOUCH_EVERY", 0.0)
    stores = await open_at(f"sqlite:///{tmp_path}/s.db?max_entries=100")
    for n in range(100):
        await stores.store.put(make_entry(f"n{n}"))
        clock.advance(1)
    await stores.store.flush()
    assert await stores.store.get(key_of("n0")) is not None
    await until(lambda: used(tmp_path / "s.db", "n0") == clock.now())
    for n in range(100, 150):
        await stores.store.put(make_entry(f"n{n}", created=clock.now()))
    await stores.store.flush()
    await until(lambda: notices.count("store-eviction", tier="store") == 50)
    there = [n for n in range(150) if await stores.store.get(key_of(f"n{n}")) is not None]
    assert there == [0, *range(51, 150)]
    check_file(tmp_path / "s.db")


def used(path: Path, name: str) -> float | None:
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT used FROM entries WHERE key = ?", (key_of(name),)).fetchone()
    connection.close()
    return None if row is None else float(row[0])


async def test_a_bound_in_bytes_holds(tmp_path: Path, open_at: Opener) -> None:
    stores = await open_at(f"sqlite:///{tmp_path}/s.db?max_bytes=100000")
    for n in range(50):
        await stores.store.put(make_entry(f"n{n}", body=os.urandom(5000)))
    await stores.store.flush()
    await until(lambda: (stores.store.status()[0].bytes or 10**9) <= 100_000)
    assert (stores.store.status()[0].entries or 0) >= 15


async def test_what_is_over_is_reclaimed_in_the_background(
    tmp_path: Path, open_at: Opener, clock: ManualClock, notices: Notices
) -> None:
    stores = await open_at(f"sqlite:///{tmp_path}/s.db")
    for n in range(50):
        await stores.store.put(make_entry(f"n{n}", ttl=10.0))
    await stores.store.put(make_entry("stays", ttl=1000.0))
    await stores.store.flush()
    clock.advance(20)
    await until(lambda: stores.store.status()[0].entries == 1)
    assert await stores.store.get(key_of("stays")) is not None
    assert notices.count("store-eviction") == 0
    check_file(tmp_path / "s.db")


async def test_events_of_a_file_that_was_lost_are_restored_and_those_of_after_are_heard(
    tmp_path: Path, open_at: Opener
) -> None:
    path = tmp_path / "s.db"
    veteran = await open_at(f"sqlite:///{path}")
    for n in range(3):
        await veteran.journal.append(ControlEvent(kind="k", subject=f"old{n}"))
    await veteran.journal.since(0)
    for file in tmp_path.iterdir():
        file.unlink()
    newcomer = await open_at(f"sqlite:///{path}")
    await newcomer.journal.append(ControlEvent(kind="k", subject="new"))
    changes = veteran.journal.changes()
    heard: list[str] = []
    while not heard:
        await asyncio.wait_for(anext(changes), ENOUGH)
        heard = [event.subject for event in await veteran.journal.since(3)]
    assert heard == ["new"]
    assert [event.subject for event in await newcomer.journal.since(1)] == ["old0", "old1", "old2", "new"]
    assert await newcomer.journal.since(4) == [] == await veteran.journal.since(4)
    assert (await newcomer.journal.append(ControlEvent(kind="k", subject="more"))).number == 5


async def test_it_outlives_the_process(tmp_path: Path, clock: ManualClock) -> None:
    last = None
    for body in (os.urandom(100), os.urandom(3000), os.urandom(500)):
        stores = await open_store(f"sqlite:///{tmp_path}/s.db", clock=clock, memory_bytes=0)
        found = await stores.store.get(key_of("a"))
        assert (found and found.entry.answer.body) == last
        last = body
        await stores.store.put(make_entry("a", body=body))
        await stores.close()
    check_file(tmp_path / "s.db")


async def test_only_its_owner_may_read_the_file(tmp_path: Path, open_at: Opener) -> None:
    stores = await open_at(f"sqlite:///{tmp_path}/s.db")
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}


async def test_a_full_queue_refuses_and_counts(tmp_path: Path, open_at: Opener, notices: Notices) -> None:
    stores = await open_at(f"sqlite:///{tmp_path}/s.db")
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = 0
    for n in range(4200):
        try:
            assert await stores.store.put(make_entry(f"n{n}"))
        except StoreUnavailable as error:
            assert error.kind == "queue-full"
            refused += 1
    other.execute("ROLLBACK")
    other.close()
    assert refused == notices.count("store-error", error="queue-full") > 0
    await stores.store.flush()


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///s.db") == tmp_path / "s.db"
    assert sqlite_path(f"sqlite:///{tmp_path}/s.db") == tmp_path / "s.db"
    assert sqlite_path("sqlite:///a%20b.db") == tmp_path / "a b.db"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "no store"),
        ("samewise.db", "no store"),
        ("mysql://x", "no store"),
        ("memory://x", "no store"),
        ("sqlite://s.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:////no/such/folder/s.db", "does not exist"),
        ("sqlite:////tmp", "is a folder"),
        ("sqlite:///s.db?max_bytes=x", "whole number"),
        ("sqlite:///s.db?cache=shared", "unknown option"),
        ("redis://h:port", "HOST:PORT"),
        ("redis://h/db", "number of a database"),
        ("redis://h1,h2", "one host"),
        ("redis://h?foo=1", "unknown option"),
        ("redis://h?max_connections=0", "at least 1"),
        ("redis+sentinel://h:1", "service"),
        ("redis+cluster://h:1/3", "no databases"),
        ("unix://", "path of a socket"),
    ],
)
async def test_a_wrong_url_is_refused_with_what_to_write(url: str, says: str, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_url(url)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=says):
        await open_store(url, clock=clock)


async def test_wrong_settings_are_refused(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="keeps nothing"):
        await open_store("memory://", clock=clock, memory_bytes=0)
    with pytest.raises(ValueError, match="namespace"):
        await open_store("memory://", clock=clock, namespace="a*")


def test_a_password_is_not_in_the_message() -> None:
    with pytest.raises(ValueError, match="unknown option") as caught:
        check_url("redis://user:hunter2@h?foo=1")
    assert "hunter2" not in str(caught.value)
