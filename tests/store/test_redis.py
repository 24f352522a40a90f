"""A Redis that is slow, frozen, full, read-only, lying or away costs a bounded time and never gives a wrong entry."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from samewise.ports import ControlEvent, StoreUnavailable
from samewise.store import redis_link, wake
from samewise.store.breaker import Breaker
from samewise.store.factory import Stores, open_store
from tests.store.conftest import Notices
from tests.support.entries import key_of, make_entry
from tests.support.patience import ENOUGH
from tests.support.redis import RedisServer, documented_rights, free_port
from tests.support.shim import Shim, redis_commands, redis_error


class Real:
    """Time as it is."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Opening:
    """Opens stores with real time and no memory tier, and closes them."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._opened: list[Stores] = []

    async def __call__(self, url: str, limit: float = ENOUGH, **settings: Any) -> Stores:
        stores = await open_store(
            url,
            clock=Real(),
            on_notice=self._notices,
            timeout=limit,
            memory_bytes=0,
            **settings,
        )
        self._opened.append(stores)
        return stores

    async def close(self) -> None:
        for stores in self._opened:
            await stores.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that did not answer is asked again ten times as soon."""
    defaults = Breaker.__init__.__kwdefaults__
    assert defaults is not None and defaults["first"] == 1.0
    monkeypatch.setitem(defaults, "first", 0.1)


@pytest.fixture
async def opening(notices: Notices) -> AsyncIterator[Opening]:
    opener = Opening(notices)
    yield opener
    await opener.close()


async def fill(stores: Stores, names: list[str]) -> None:
    """Put them, again where the time limit of a test was too short for a busy machine."""
    missing = names
    while missing:
        for name in missing:
            assert await stores.store.put(make_entry(name, created=time.time()))
        await stores.store.flush()
        missing = [name for name in missing if not await there(stores, name)]


async def echoes(stores: Stores, name: str) -> bool:
    """True where there is an entry, which must then be the right one."""
    found = await stores.store.get(key_of(name))
    if found is None:
        return False
    assert found.entry.answer.body == make_entry(name).answer.body
    return True


async def timed(stores: Stores, name: str) -> tuple[float, str]:
    """Seconds, and what came: `entry`, `none` or the kind of failure."""
    began = time.monotonic()
    try:
        what = "entry" if await echoes(stores, name) else "none"
    except StoreUnavailable as error:
        what = error.kind
    return time.monotonic() - began, what


async def there(stores: Stores, name: str) -> bool:
    """What `echoes` tells, of the first time that the store can be asked."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await echoes(stores, name)
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not await condition():  # noqa: ASYNC110 - what others do tells nobody
            await asyncio.sleep(0.02)


async def go_down(stores: Stores) -> None:
    """Ask until nobody is asked any more."""
    while stores.store.status()[0].available:
        await asyncio.gather(*(timed(stores, f"down{at}") for at in range(10)))


@pytest.mark.parametrize("connections", [1, 10])
@pytest.mark.usefixtures("eager")
async def test_replies_of_abandoned_commands_never_reach_others(
    shared_redis: RedisServer, opening: Opening, connections: int
) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(
            f"redis://127.0.0.1:{shim.port}?max_connections={connections}", namespace=f"r01-{connections}"
        )
        names = [f"p{n}" for n in range(60)]
        await fill(stores, names)
        shim.delay = (0.0, 0.02)
        chance = random.Random(1)
        tasks = [asyncio.create_task(timed(stores, name)) for name in names]
        for task in tasks:
            if chance.random() < 0.5:
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.1), task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        shim.delay = 0.0
        await until(lambda: found_up(stores))
        assert all([await echoes(stores, name) for name in names])


async def found_up(stores: Stores) -> bool:
    return stores.store.status()[0].available


async def test_a_command_that_timed_out_leaves_no_reply_behind(shared_redis: RedisServer, opening: Opening) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}?max_connections=1", 0.5, namespace="late")
        await fill(stores, ["a", "b"])
        shim.hold()
        assert (await timed(stores, "a"))[1] == "timeout"
        shim.release()
        assert await there(stores, "b")
        assert await there(stores, "a")


async def test_what_is_discarded_while_it_is_on_its_way_does_not_come_back(
    shared_redis: RedisServer, opening: Opening
) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}", namespace="way", segment=1000)

        async def sent() -> bool:
            return any("SET" in redis_commands(chunk) for chunk in shim.requests)

        shim.hold()
        await stores.store.put(make_entry("a", created=time.time(), began=3, body=random.Random(1).randbytes(5000)))
        await until(sent)
        discarding = asyncio.create_task(stores.store.discard(key_of("a"), 2))
        for _ in range(1000):  # enough for a command that would overtake it
            await asyncio.sleep(0)
        shim.release()
        assert await discarding
        await stores.store.flush()
        assert not await echoes(stores, "a")


async def test_a_value_moved_to_another_key_is_a_miss_and_is_counted(
    redis_server: RedisServer, opening: Opening, notices: Notices
) -> None:
    stores = await opening(redis_server.url)
    await fill(stores, ["a", "b"])
    a, b = (f"samewise:default:e:{{{key_of(name)}}}" for name in "ab")
    redis_server.command("COPY", b, a, "REPLACE")
    assert not await echoes(stores, "a")
    assert await echoes(stores, "b")
    assert notices.errors() == ["checksum"]


async def test_values_of_any_kind_are_a_miss(redis_server: RedisServer, opening: Opening, notices: Notices) -> None:
    stores = await opening(redis_server.url)
    name = f"samewise:default:e:{{{key_of('a')}}}"
    for words in (["SET", name, "junk"], ["SET", name, ""], ["LPUSH", name, "x"], ["HSET", name, "f", "v"]):
        redis_server.command("DEL", name)
        redis_server.command(*words)
        assert not await echoes(stores, "a")
    assert set(notices.errors()) == {"format", "wrongtype"}
    await fill(stores, ["a"])
    assert await echoes(stores, "a")


@pytest.mark.usefixtures("eager")
async def test_frozen_costs_the_time_limit_then_nothing_and_mends_itself(
    redis_server: RedisServer, opening: Opening, notices: Notices
) -> None:
    limit = 0.3
    stores = await opening(redis_server.url, limit)
    await fill(stores, ["a"])
    redis_server.stop()
    took = await asyncio.gather(*(timed(stores, f"a{at}") for at in range(100)))
    assert all(seconds < 100 * limit / 2 for seconds, _ in took), "they wait for each other"
    assert {what for _, what in took} <= {"timeout", "overload"}
    await go_down(stores)
    refused = [await timed(stores, "a") for _ in range(20)]
    assert {what for _, what in refused} == {"circuit-open"}
    assert min(seconds for seconds, _ in refused) < limit / 10
    assert not stores.store.status()[0].available
    assert stores.store.status()[0].detail == "timeout"
    assert notices.count("store-state", state="down") == 1
    redis_server.cont()
    await until(lambda: found_up(stores))
    assert await there(stores, "a")
    assert notices.count("store-state", state="up") == 1


async def test_a_frozen_redis_never_holds_up_a_put_or_the_end(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.url, 0.1)
    redis_server.stop()
    began = time.monotonic()
    for n in range(200):
        with contextlib.suppress(StoreUnavailable):
            await stores.store.put(make_entry(f"n{n}", created=time.time()))
    assert time.monotonic() - began < 200 * 0.1 / 2, "each waits for its time limit"
    async with asyncio.timeout(ENOUGH):
        await stores.close()
    redis_server.cont()


async def test_probes_of_a_dead_redis_are_at_most_one_a_second(redis_server: RedisServer, opening: Opening) -> None:
    async with Shim.before(redis_server.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}", 0.1)
        await fill(stores, ["a"])
        shim.freeze()
        began = time.monotonic()
        await go_down(stores)
        before = shim.accepted
        while shim.accepted == before:
            assert (await timed(stores, "a"))[1] == "circuit-open"
            await asyncio.sleep(0.01)
        assert shim.accepted - before <= time.monotonic() - began


@pytest.mark.usefixtures("eager")
async def test_killed_and_started_again_it_is_used_again(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.url)
    await fill(stores, ["a"])
    redis_server.kill()
    kinds = {(await timed(stores, "a"))[1] for _ in range(8)}
    assert kinds <= {"refused", "disconnected", "circuit-open"}
    redis_server.start()
    await until(lambda: found_up(stores))
    assert not await echoes(stores, "a")
    await fill(stores, ["a"])
    assert await echoes(stores, "a")


@pytest.mark.parametrize("where", ["refused", "blackholed", "dns", "password", "unix"])
async def test_opening_an_unreachable_redis_is_bounded_and_counted(
    redis_server: RedisServer, opening: Opening, notices: Notices, where: str
) -> None:
    async with Shim.before(redis_server.port) as shim:
        shim.freeze()
        url, kind = {
            "refused": (f"redis://127.0.0.1:{free_port()}", "refused"),
            "blackholed": (f"redis://127.0.0.1:{shim.port}", "timeout"),
            "dns": ("redis://no-such-host.invalid", "dns"),
            "password": (f"redis://:wrong@127.0.0.1:{redis_server.port}", "noauth"),
            "unix": ("unix:///nonexistent/redis.sock", "refused"),
        }[where]
        async with asyncio.timeout(ENOUGH):
            stores = await opening(url, 0.3 if where == "blackholed" else 2.0)
        assert set(notices.errors()) <= {kind, "timeout"}
        assert notices.errors()
        assert (await timed(stores, "a"))[1] in (kind, "timeout")


@pytest.mark.usefixtures("eager")
async def test_a_redis_that_appears_later_is_used(opening: Opening, redis_server: RedisServer) -> None:
    redis_server.kill()
    stores = await opening(redis_server.url)
    for _ in range(6):
        await timed(stores, "a")
    redis_server.start()
    await until(lambda: found_up(stores))
    await fill(stores, ["a"])
    assert await echoes(stores, "a")


async def test_full_memory_fails_writes_alone_once_each(
    redis_server: RedisServer, opening: Opening, notices: Notices
) -> None:
    stores = await opening(redis_server.url)
    await fill(stores, ["kept"])
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    redis_server.command("CONFIG", "SET", "maxmemory", "100kb")
    redis_server.command("CONFIG", "RESETSTAT")
    for n in range(100):
        await stores.store.put(make_entry(f"n{n}", created=time.time()))
    await stores.store.flush()
    assert await echoes(stores, "kept")
    stored = sum([await echoes(stores, f"n{n}") for n in range(100)])
    assert stored < 10
    assert notices.count("store-error", error="oom", operation="put") == 100 - stored
    assert stores.store.status()[0].available
    stats = redis_server.command("INFO", "commandstats").decode()
    calls = [int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if line.startswith("cmdstat_ev")]
    assert sum(calls) <= 200
    redis_server.command("CONFIG", "SET", "maxmemory", "0")
    await fill(stores, ["after"])
    assert await echoes(stores, "after")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown"),
        ("NOAUTH Authentication required.", "noauth"),
        ("READONLY You can't write against a read only replica.", "readonly"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
        ("NOPERM this user has no permissions to run the 'get' command", "noperm"),
        ("CLUSTERDOWN The cluster is down", "clusterdown"),
        ("ERR something else", "error"),
    ],
)
async def test_what_the_server_answers_is_told_in_a_bounded_word(
    shared_redis: RedisServer, opening: Opening, notices: Notices, message: str, kind: str
) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}")
        await fill(stores, ["a"])
        shim.answer = redis_error(message, only={"GET", "EVALSHA", "EVAL"})
        assert (await timed(stores, "a"))[1] == kind
        await stores.store.put(make_entry("b", created=time.time()))
        await stores.store.flush()
        assert notices.errors() == [kind, kind]
        shim.answer = None
        assert await echoes(stores, "a")


async def test_cut_in_the_middle_of_a_reply_is_a_failure_not_an_entry(
    shared_redis: RedisServer, opening: Opening
) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}")
        await fill(stores, ["a"])
        shim.cut_after(100)
        assert (await timed(stores, "a"))[1] == "disconnected"
        shim.cut_after(None)
        assert await echoes(stores, "a")


async def test_nonsense_in_place_of_a_reply_is_a_failure(shared_redis: RedisServer, opening: Opening) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}")
        await fill(stores, ["a"])
        shim.answer = lambda chunk: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        assert (await timed(stores, "a"))[1] in ("protocol", "disconnected")
        shim.answer = None
        assert await echoes(stores, "a")


async def test_reads_that_time_out_cause_no_writes(shared_redis: RedisServer, opening: Opening) -> None:
    async with Shim.before(shared_redis.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}", 0.3)
        await fill(stores, ["a"])
        shim.freeze()
        seen = len(shim.requests)
        await asyncio.gather(*(timed(stores, "a") for _ in range(20)))
        sent = {name for chunk in shim.requests[seen:] for name in redis_commands(chunk)}
        assert not sent & {"SET", "EVAL", "EVALSHA"}


async def test_every_key_has_a_time_to_live_near_what_was_asked(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.url)
    began = time.time()
    for ttl in (0.4, 1.5, 60.0, 1e12, 2.0**63):
        await stores.store.put(make_entry(str(ttl), created=time.time(), ttl=ttl))
    await stores.store.discard(key_of("gone"), 3)
    await stores.store.flush()
    keys = [word for word in redis_server.command("KEYS", "*").split(b"\r\n") if word.startswith(b"samewise:")]
    assert len(keys) >= 4
    for key in keys:
        left = int(redis_server.command("PTTL", key)[1:])
        assert left > 0 or left == -2
    left = int(redis_server.command("PTTL", f"samewise:default:e:{{{key_of('60.0')}}}")[1:])
    assert 60_000 - (time.time() - began) * 1000 - 10 < left <= 60_000


@pytest.mark.usefixtures("eager")
async def test_connections_stay_within_the_pool(redis_server: RedisServer, opening: Opening) -> None:
    async with Shim.before(redis_server.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}?max_connections=8")
        names = [f"n{n}" for n in range(50)]
        await fill(stores, names)
        chance = random.Random(2)
        for _ in range(10):
            tasks = [asyncio.create_task(timed(stores, chance.choice(names))) for _ in range(100)]
            for task in chance.sample(tasks, 40):
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.01), task.cancel)
            asyncio.get_running_loop().call_later(0.005, shim.drop)
            await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: found_up(stores))
        await timed(stores, "n1")

        async def few() -> bool:
            return shim.open <= 8 + 2

        await until(few)


async def test_closing_writes_what_waits(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.url)
    for n in range(200):
        await stores.store.put(make_entry(f"n{n}", created=time.time()))
    await stores.close()
    other = await opening(redis_server.url)
    assert all([await echoes(other, f"n{n}") for n in range(200)])


async def test_a_full_queue_refuses_and_counts(redis_server: RedisServer, opening: Opening, notices: Notices) -> None:
    stores = await opening(redis_server.url)
    refused = 0
    for n in range(5000):
        try:
            assert await stores.store.put(make_entry(f"n{n}", created=time.time()))
        except StoreUnavailable as error:
            assert error.kind == "queue-full"
            refused += 1
    assert notices.count("store-error", error="queue-full") == refused > 0
    await stores.store.flush()


async def test_what_a_url_says_about_time_is_ignored(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(f"{redis_server.url}?socket_timeout=60&socket_connect_timeout=60&retry_on_timeout=true", 0.3)
    await fill(stores, ["a"])
    redis_server.stop()
    assert (await timed(stores, "a"))[0] < 60 / 2
    redis_server.cont()


async def test_a_socket_file_works_like_a_port(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.unix_url)
    await fill(stores, ["a"])
    assert await echoes(stores, "a")


async def test_a_cluster_works_like_a_single_server(
    redis_cluster: RedisServer, opening: Opening, notices: Notices
) -> None:
    stores = await opening(f"redis+cluster://127.0.0.1:{redis_cluster.port}")
    names = [f"n{n}" for n in range(50)]
    await fill(stores, names)
    assert all([await echoes(stores, name) for name in names])
    assert await stores.store.discard(key_of("n1"), 2)
    assert not await echoes(stores, "n1")
    assert len([entry async for entry in stores.store.scan()]) == 49
    await stores.journal.append(ControlEvent(kind="k", subject="s"))
    assert len(await stores.journal.since(0)) == 1
    await stores.records.add("k", "1", b"v", keep=1)
    assert await stores.records.latest("k", 1) == [("1", b"v")]
    assert notices.errors() == []


async def test_sentinel_leads_to_the_primary(redis_server: RedisServer, opening: Opening) -> None:
    watch = f"sentinel monitor main 127.0.0.1 {redis_server.port} 1"
    sentinel = RedisServer(sentinel=watch)
    try:
        stores = await opening(f"redis+sentinel://127.0.0.1:{sentinel.port}/main")
        await fill(stores, ["a"])
        assert await echoes(stores, "a")
        assert b":1" in redis_server.command("EXISTS", f"samewise:default:e:{{{key_of('a')}}}")
        await stores.close()
    finally:
        sentinel.close()


@pytest.mark.parametrize("cluster", [False, True])
async def test_a_user_with_the_documented_commands_alone_is_enough(
    redis_server: RedisServer, redis_cluster: RedisServer, opening: Opening, notices: Notices, cluster: bool
) -> None:
    server = redis_cluster if cluster else redis_server
    server.command("ACL", "SETUSER", "sw", "on", ">pw", *documented_rights(cluster=cluster))
    stores = await opening(f"redis{'+cluster' if cluster else ''}://sw:pw@127.0.0.1:{server.port}")
    await fill(stores, ["a", "b"])
    assert await echoes(stores, "a")
    await stores.store.discard(key_of("a"), 1)
    assert len([entry async for entry in stores.store.scan()]) == 1
    await stores.journal.append(ControlEvent(kind="k", subject="s"))
    assert len(await stores.journal.since(0)) == 1
    for n in range(3):
        await stores.records.add("k", str(n), b"v", keep=1)
    assert len(await stores.records.latest("k", 5)) == 1
    assert await stores.records.get("k", "2") == b"v"
    assert stores.leases is not None

    async def leads() -> bool:
        assert stores.leases is not None
        return await stores.leases.turn(key_of("c"), 0) == "mine"

    await until(leads)
    await stores.leases.release(key_of("c"), 0, stored=False)
    assert notices.errors() == []


async def test_other_applications_keys_are_left_alone(redis_server: RedisServer, opening: Opening) -> None:
    redis_server.command("SET", "app:session:1", "theirs")
    stores = await opening(redis_server.url)
    await fill(stores, ["a", "b"])
    async for entry in stores.store.scan():
        await stores.store.discard(entry.key, 1)
    assert b"theirs" in redis_server.command("GET", "app:session:1")
    stats = redis_server.command("INFO", "commandstats").decode().lower()
    assert "cmdstat_keys:" not in stats
    assert "cmdstat_flush" not in stats


# --- journal ------------------------------------------------------------------------------------------


def event(subject: str) -> ControlEvent:
    return ControlEvent(kind="invalidate", subject=subject)


@pytest.mark.usefixtures("eager")
async def test_a_proxy_that_was_cut_off_catches_up_when_it_returns(redis_server: RedisServer, opening: Opening) -> None:
    async with Shim.before(redis_server.port) as shim:
        here = await opening(redis_server.url)
        away = await opening(f"redis://127.0.0.1:{shim.port}", 0.3)
        seen: list[str] = []

        async def follow() -> None:
            async for _ in away.journal.changes():
                with contextlib.suppress(StoreUnavailable):
                    seen.extend(one.subject for one in await away.journal.since(len(seen)))

        follower = asyncio.create_task(follow())
        await here.journal.append(event("before"))
        await until(lambda: _equal(seen, ["before"]))
        shim.freeze()
        await go_down(away)
        await here.journal.append(event("meanwhile"))
        shim.thaw()
        await until(lambda: _equal(seen, ["before", "meanwhile"]))
        follower.cancel()


async def _equal(seen: list[str], expected: list[str]) -> bool:
    return seen == expected


async def _told(teller: Stores, listener: Stores) -> None:
    """Return when the listener heard of something that the teller appended."""
    heard = asyncio.Event()

    async def listen() -> None:
        async for _ in listener.journal.changes():
            if await listener.journal.since(0):
                heard.set()

    async def said() -> bool:
        await teller.journal.append(event("news"))
        return heard.is_set()

    listening = asyncio.create_task(listen())
    await until(said)
    listening.cancel()


@pytest.mark.parametrize("kind", ["single", "cluster", "cluster, a node away"])
async def test_word_of_an_event_goes_round_without_a_look(
    redis_server: RedisServer,
    redis_cluster: RedisServer,
    opening: Opening,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(wake, "POLL", 3600)
    monkeypatch.setattr(wake, "TOLD", 3600)
    cluster = f"127.0.0.1:{redis_cluster.port}"
    url = {
        "single": redis_server.url,
        "cluster": f"redis+cluster://{cluster}",
        "cluster, a node away": f"redis+cluster://127.0.0.1:{free_port()},{cluster}",
    }[kind]
    await _told(await opening(url), await opening(url))


@pytest.mark.parametrize("missing", ["publish", "subscribe", "channels"])
async def test_who_may_not_speak_or_hear_looks_and_appends_all_the_same(
    redis_server: RedisServer, opening: Opening, notices: Notices, missing: str
) -> None:
    rights = ["+@all", "~*", "allchannels" if missing != "channels" else "resetchannels"]
    rights += [f"-{missing}"] if missing != "channels" else []
    redis_server.command("ACL", "SETUSER", "sw", "on", ">pw", *rights)
    url = f"redis://sw:pw@127.0.0.1:{redis_server.port}"
    await _told(await opening(url), await opening(url))
    assert notices.errors() == []


def test_who_is_told_still_looks_in_time() -> None:
    """What an operator ends is ended everywhere within a second, words lost or not."""
    assert max(wake.POLL, wake.TOLD) + 0.2 < 1


@pytest.mark.usefixtures("eager")
async def test_a_journal_that_the_server_lost_is_restored_by_who_knows_it(
    redis_server: RedisServer, opening: Opening
) -> None:
    stores = await opening(redis_server.url)
    for n in range(3):
        await stores.journal.append(event(str(n)))
    await stores.journal.since(0)
    redis_server.restart()
    await until(lambda: _answers(stores))
    assert (await stores.journal.append(event("3"))).number == 4
    newcomer = await opening(redis_server.url)
    assert [one.subject for one in await newcomer.journal.since(0)] == ["0", "1", "2", "3"]


async def _answers(stores: Stores) -> bool:
    return (await timed(stores, "x"))[1] == "none"


@pytest.mark.usefixtures("eager")
async def test_events_written_to_an_emptied_server_and_those_of_before_are_all_heard(
    redis_server: RedisServer, opening: Opening
) -> None:
    veteran = await opening(redis_server.url)
    for n in range(3):
        await veteran.journal.append(event(f"old{n}"))
    await veteran.journal.since(0)
    redis_server.restart()
    newcomer = await opening(redis_server.url)
    assert (await newcomer.journal.append(event("new"))).number == 1
    await until(lambda: _answers(veteran))
    assert [one.subject for one in await veteran.journal.since(3)] == ["new"]
    assert [one.subject for one in await newcomer.journal.since(1)] == ["old0", "old1", "old2", "new"]
    assert await newcomer.journal.since(4) == [] == await veteran.journal.since(4)


async def test_an_append_that_fails_says_so(redis_server: RedisServer, opening: Opening) -> None:
    stores = await opening(redis_server.url)
    redis_server.kill()
    with pytest.raises(StoreUnavailable):
        await stores.journal.append(event("a"))
    with pytest.raises(StoreUnavailable):
        await stores.store.discard(key_of("a"), 1)


async def test_more_questions_than_fit_in_time_never_close_the_door_on_a_server_that_answers(
    redis_server: RedisServer, opening: Opening, notices: Notices
) -> None:
    async with Shim.before(redis_server.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}?max_connections=4", 1.0)
        await fill(stores, ["a"])
        names = [f"a{at}" for at in range(200)]
        shim.delay = 0.2
        took = await asyncio.gather(*(timed(stores, name) for name in names))
        assert {what for _, what in took} <= {"none", "overload", "timeout"}
        assert any(what == "none" for _, what in took)
        assert stores.store.status()[0].available
        assert notices.count("store-error", error="overload", operation="get") > 100
        shim.delay = 0.0
        assert await there(stores, "a")


async def test_those_who_ask_for_one_entry_at_once_are_one_question(
    redis_server: RedisServer, opening: Opening
) -> None:
    async with Shim.before(redis_server.port) as shim:
        stores = await opening(f"redis://127.0.0.1:{shim.port}")
        await fill(stores, ["a"])
        shim.requests.clear()
        shim.delay = 0.02
        assert all(await asyncio.gather(*(echoes(stores, "a") for _ in range(100))))
        assert sum(redis_commands(chunk).count("GET") for chunk in shim.requests) == 1
        assert await stores.store.discard(key_of("a"), 1)
        assert not any(await asyncio.gather(*(echoes(stores, "a") for _ in range(10))))


async def test_what_an_operator_does_is_done_though_the_circuit_is_open(
    redis_server: RedisServer, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "PATIENCE", ENOUGH)
    stores = await opening(redis_server.url, 0.3)
    await fill(stores, ["a"])
    redis_server.stop()
    await go_down(stores)
    assert (await timed(stores, "a"))[1] == "circuit-open"
    redis_server.cont()
    assert (await stores.journal.append(event("now"))).number == 1
    assert [one.subject for one in await stores.journal.since(0)] == ["now"]
    assert await stores.store.discard(key_of("a"), 1)
