"""What was declared to be over is never served again, by nobody, whatever was under way; what wasn't stays."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, Answered, Proxy, soon, until
from tests.support.redis import RedisServer, redis_binary
from tests.support.shim import Shim


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if redis_binary() is None:
        pytest.skip("no redis-server")
    server = RedisServer()
    yield server
    server.kill()


@pytest.fixture
def on_redis(redis: RedisServer) -> dict[str, Any]:
    redis.command("FLUSHALL")
    return {"store.url": redis.url, "store.timeout": ENOUGH}


async def invalidate(proxy: Proxy, scope: str, value: Any = "", **more: Any) -> Any:
    return await proxy.admin("POST", "/invalidate", {"scope": scope, "value": value, **more})


def ask(number: int, **more: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": f"question {number}"}], **more}


Purge = Callable[[Proxy, Answered], Any]
PURGES: dict[str, Purge] = {
    "key": lambda proxy, answered: invalidate(proxy, "key", answered.key),
    "model": lambda proxy, answered: invalidate(proxy, "model", "m"),
    "all": lambda proxy, answered: invalidate(proxy, "all"),
    "tag": lambda proxy, answered: invalidate(proxy, "tag", "t"),
    "environment": lambda proxy, answered: invalidate(proxy, "environment", "a" * 32),
    "tenant": lambda proxy, answered: invalidate(proxy, "tenant", "a"),
    "profile": lambda proxy, answered: invalidate(proxy, "profile", "default"),
}
KEYS = {tenant: f"key-of-{tenant}-1234567890" for tenant in ("a", "b")}


def of_tenants() -> dict[str, Any]:
    """Settings with a key for each tenant."""
    digests = {tenant: hashlib.sha256(key.encode()).hexdigest() for tenant, key in KEYS.items()}
    return {"auth.keys": [{"tenant": tenant, "sha256": digest} for tenant, digest in digests.items()]}


def of(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


@pytest.mark.parametrize("purge", PURGES.values(), ids=PURGES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_fill_that_began_before_an_invalidation_is_not_joined_and_never_lands(
    make_proxy: MakeProxy, mb: MockBackend, purge: Purge, stream: bool
) -> None:
    proxy = await make_proxy(settings=of_tenants())
    body, tags = {**B0, "stream": stream}, {"x-samewise-tags": "t", **of("a")}
    old, new = asyncio.Event(), asyncio.Event()
    mb.once(Script(gate=old, text=lambda body, number: "version one"))
    first = asyncio.create_task(proxy.post(body, headers=tags))
    await mb.arrived(1)
    key = await proxy.admin("POST", "/explain", {"endpoint": "chat", "body": B0, "tenant": "a"})
    await purge(proxy, Answered(200, {"x-samewise-key": key["key"]}, b"", 0))

    mb.once(Script(gate=new, text=lambda body, number: "version two"))
    second = asyncio.create_task(proxy.post(body, headers=tags))
    await mb.arrived(2)
    new.set()
    answered = await second
    assert (answered.cache, answered.text) == ("MISS", "version two")
    old.set()  # the older fill ends last
    late = await first
    assert (late.status, late.text) == (200, "version one")
    hit = await proxy.post(body, headers=tags)
    assert (hit.cache, hit.text) == ("HIT", "version two")


async def test_what_an_invalidation_doesnt_name_stays(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy()
    bodies = [{**B0, "model": model} for model in ("m", "m-small")]
    before = [await proxy.post(body) for body in bodies]
    assert (await invalidate(proxy, "model", "m", dry_run=True))["matched"] == 1
    assert [(await proxy.post(body)).cache for body in bodies] == ["HIT", "HIT"]
    told = await invalidate(proxy, "model", "m", reason="a try")
    assert told["epoch"] == 1
    assert [(await proxy.post(body)).cache for body in bodies] == ["MISS", "HIT"]
    assert (await proxy.post(bodies[1])).body == before[1].body
    assert (await invalidate(proxy, "model", "m", dry_run=True))["matched"] == 1


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_the_end_of_a_tenants_answers_touches_no_other_tenant(
    make_proxy: MakeProxy, mb: MockBackend, store: str
) -> None:
    url = "memory://" if store == "memory" else "sqlite:///entries.db"
    proxy = await make_proxy(settings={**of_tenants(), "store.url": url})
    mine, theirs = [await proxy.post(B0, headers=of(tenant)) for tenant in ("a", "b")]
    assert (mine.cache, theirs.cache) == ("MISS", "MISS")
    assert (await invalidate(proxy, "tenant", "a", dry_run=True))["matched"] == 1
    assert (await invalidate(proxy, "tenant", "a", reason="they asked"))["epoch"] == 1
    anew = await proxy.post(B0, headers=of("a"))
    assert (anew.cache, anew.text == mine.text, anew.key == mine.key) == ("MISS", False, False)
    kept = await proxy.post(B0, headers=of("b"))
    assert (kept.cache, kept.body) == ("HIT", theirs.body)
    if store == "sqlite":
        await proxy.restart()
        for tenant, before in (("a", anew), ("b", theirs)):
            again = await proxy.post(B0, headers=of(tenant))
            assert (again.cache, again.body) == ("HIT", before.body)


async def test_a_globlike_value_is_a_name_like_any_other(proxy: Proxy, mb: MockBackend) -> None:
    await proxy.post(B0)
    for scope in ("model", "tenant", "tag", "key", "profile", "environment"):
        await invalidate(proxy, scope, "*")
    assert (await proxy.post(B0)).cache == "HIT"


async def test_an_invalidation_that_redis_doesnt_take_is_no_success(
    make_proxy: MakeProxy, mb: MockBackend, redis: RedisServer, on_redis: dict[str, Any]
) -> None:
    proxy = await make_proxy(settings={**on_redis, "store.timeout": "200ms"})
    filled = await proxy.post(B0)
    assert filled.cache == "MISS"
    redis.stop()
    try:
        for scope, value in (("all", ""), ("model", "m"), ("key", filled.key)):
            answered = await proxy.request(
                "POST", "/samewise/v1/invalidate", body={"scope": scope, "value": value}, admin=True
            )
            assert answered.status == 503, answered
            assert "not known whether" in answered.json()["error"]["message"]
    finally:
        redis.cont()

    async def done() -> bool:
        answered = await proxy.request("POST", "/samewise/v1/invalidate", body={"scope": "all"}, admin=True)
        return answered.status == 200

    await until(done)
    assert (await proxy.post(B0)).cache == "MISS"


async def test_a_purge_leaves_the_rest_of_redis_alone_and_looks_for_nothing_by_pattern(
    make_proxy: MakeProxy, mb: MockBackend, redis: RedisServer, on_redis: dict[str, Any]
) -> None:
    proxy = await make_proxy(settings=on_redis)
    for number in range(20):
        await proxy.post(ask(number))
    redis.command("SET", "app:session:1", "theirs")
    with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as other:
        other.sendall(b"SELECT 1\r\nSET theirs 1\r\n")
        assert other.recv(100).startswith(b"+OK")
    with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        assert monitor.recv(5) == b"+OK\r\n"
        await invalidate(proxy, "all", reason="everything")

        async def reclaimed() -> bool:
            return any("reclaimed" in line and "entries=20" in line.replace("'", "") for line in map(flat, proxy.log))

        await until(reclaimed)
        monitor.settimeout(0.2)
        seen = b""
        try:
            while piece := monitor.recv(1 << 20):
                seen += piece
        except TimeoutError:
            pass
    commands = {line.split(b'"')[1].upper() for line in seen.split(b"\r\n") if b'"' in line}
    assert commands & {b"UNLINK", b"SCAN"} == {b"UNLINK", b"SCAN"}
    assert not commands & {b"KEYS", b"FLUSHDB", b"FLUSHALL"}
    assert redis.command("GET", "app:session:1") == b"$6\r\ntheirs\r\n"
    with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as other:
        other.sendall(b"SELECT 1\r\nGET theirs\r\n")
        assert b"$1\r\n1" in other.recv(100)
    left = redis.command("EVAL", "return #redis.call('SCAN', '0', 'MATCH', 'samewise:*:e:*', 'COUNT', 10000)[2]", "0")
    assert left == b":0\r\n"
    assert (await proxy.post(ask(0))).cache == "MISS"


def flat(line: str) -> str:
    """A log line, in whichever of the two forms."""
    return line.replace('"entries": ', "entries=").replace('"entries":', "entries=")


async def test_an_invalidation_says_in_the_log_by_whom_when_why_and_how_many(proxy: Proxy, mb: MockBackend) -> None:
    for number in range(3):
        await proxy.post(ask(number), headers={"x-samewise-tags": "batch-7"})
    await proxy.admin(
        "POST",
        "/invalidate",
        {"scope": "tag", "value": "batch-7", "reason": "wrong prices"},
        headers={"x-samewise-operator": "ada"},
    )

    async def told() -> bool:
        return any("reclaimed" in line for line in proxy.log)

    await until(told)
    log = "".join(proxy.log)
    made = next(line for line in proxy.log if "wrong prices" in line)
    swept = next(line for line in proxy.log if "reclaimed" in line)
    assert "ada" in made, log
    assert "ada" in swept
    assert "wrong prices" in swept
    assert "entries=3" in flat(swept), swept
    assert await proxy.metric("samewise_invalidations_total", scope="tag") == 1


async def test_other_weights_under_the_same_name_are_another_key_and_going_back_is_a_hit(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy(settings={"environments.poll": "1h"})  # so that answers alone tell of the swaps
    first = await proxy.post(B0)
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    under_way = asyncio.create_task(proxy.post(ask(1)))
    await mb.arrived(2)
    mb.become("b" * 32, weights="sha256:" + "1" * 64)
    during = await proxy.post(ask(2))  # its header tells of the swap
    assert (during.cache, during.reason) == ("MISS", "environment-changed")

    async def followed() -> bool:
        listed = await proxy.admin("GET", "/environments")
        return [item["id"] for item in listed["items"] if item["active"]] == ["b" * 32]

    await soon(followed)
    gate.set()
    assert (await under_way).reason == "environment-changed"
    swapped = await proxy.post(B0)
    assert swapped.cache == "MISS"
    assert swapped.headers["x-samewise-environment"] == "b" * 32
    assert (await proxy.post(ask(1))).cache == "MISS"
    mb.become("a" * 32, weights="sha256:" + "0" * 64)
    await proxy.post(ask(3))

    async def back() -> bool:
        return bool((await proxy.post(B0)).body == first.body)

    await soon(back)
    again = await proxy.post(B0)
    assert (again.cache, again.body) == ("HIT", first.body)


async def test_max_age_is_measured_from_when_the_answer_was_recorded(proxy: Proxy, mb: MockBackend) -> None:
    asked = time.monotonic()
    await proxy.post(B0)
    recorded = time.monotonic()

    async def old_enough() -> bool:
        return time.monotonic() - recorded > 2.1

    assert (await proxy.post(B0, headers={"cache-control": "max-age=600"})).cache == "HIT"
    await until(old_enough)
    hit = await proxy.post(B0, headers={"cache-control": "max-age=600"})
    assert (hit.cache, 2 <= int(hit.headers["age"]) <= time.monotonic() - asked) == ("HIT", True)
    asked = time.monotonic()
    refreshed = await proxy.post(B0, headers={"cache-control": "max-age=1"})
    assert (refreshed.cache, mb.count) == ("MISS", 2)
    assert int((await proxy.post(B0)).headers["age"]) <= time.monotonic() - asked
    assert (await proxy.post(B0, headers={"cache-control": "max-age=0"})).cache == "MISS"
    for value in ("-1", "abc", "99999999999", "", "1.5"):
        answered = await proxy.post(B0, headers={"cache-control": f"max-age={value}"})
        assert answered.status in {200, 400}, (value, answered)
    assert (await proxy.post(B0, headers={"cache-control": "max-age=99999999999"})).cache == "HIT"


@pytest.mark.parametrize("value", [b"", b"v0", b"\x00\xff" * 40, b'{"v":999}'], ids=["empty", "v0", "noise", "v999"])
async def test_an_entry_of_another_format_is_a_miss_and_is_filled_anew(
    make_proxy: MakeProxy, mb: MockBackend, redis: RedisServer, on_redis: dict[str, Any], value: bytes
) -> None:
    proxy = await make_proxy(settings={**on_redis, "store.memory": 0})
    key = (await proxy.post(B0)).key

    async def stored() -> bool:
        return redis.command("EXISTS", name(key)) == b":1\r\n"

    await until(stored)
    await proxy.post(ask(1))  # the write of the first is over by now
    redis.command("SET", name(key), value)
    assert (await proxy.post(B0)).cache == "MISS"
    assert (await proxy.post(B0)).cache == "HIT"
    assert not any("Traceback" in line for line in proxy.log)


def name(key: str | None) -> str:
    return f"samewise:default:e:{{{key}}}"


async def test_to_end_what_isnt_there_is_no_failure_and_what_makes_no_sense_ends_nothing(
    proxy: Proxy, mb: MockBackend
) -> None:
    await proxy.post(B0)
    nobody = "f" * 64
    for _ in range(2):
        assert (await invalidate(proxy, "key", nobody))["matched"] == 0
    deleted = await proxy.request("DELETE", f"/samewise/v1/entries/{nobody}", admin=True)
    assert deleted.status == 404
    many = [f"{number:064x}" for number in range(10_000)]
    assert (await invalidate(proxy, "key", many))["matched"] == 0
    wrong: list[Any] = [
        {"scope": "everything"},
        {"scope": "model"},
        {"scope": "model", "value": 7},
        {"scope": "model", "value": ["m", "n"]},
        {"scope": "key", "value": []},
        {"scope": "key", "value": [*many, nobody]},
        {"scope": ["all"]},
        {"scope": "all", "dry_run": "no"},
        [],
        b"{",
    ]
    for body in wrong:
        answered = await proxy.request("POST", "/samewise/v1/invalidate", body=body, admin=True)
        assert answered.status == 400, (body, answered)
    hit = await proxy.post(B0)
    assert hit.cache == "HIT"
    kept = await proxy.post(ask(1))
    assert (await invalidate(proxy, "key", [hit.key, nobody]))["matched"] == 1
    assert (await proxy.post(B0)).cache == "MISS"
    assert (await proxy.post(ask(1))).body == kept.body
    assert (await invalidate(proxy, "key", hit.key))["matched"] == 1
    assert (await invalidate(proxy, "key", hit.key))["matched"] == 0


async def test_an_invalidation_reaches_a_second_proxy_within_a_second_and_fills_in_flight_leave_nothing(
    make_proxy: MakeProxy, mb: MockBackend, redis: RedisServer, on_redis: dict[str, Any]
) -> None:
    one, other = [await make_proxy(settings=on_redis) for _ in range(2)]
    assert (await one.post(B0)).cache == "MISS"

    async def shared() -> bool:
        return (await other.post(B0)).cache == "HIT"

    await until(shared)
    count, gate = mb.count, asyncio.Event()
    mb.when("question", Script(gate=gate))
    filling = [asyncio.create_task((one, other)[number % 2].post(ask(number))) for number in range(100)]
    await mb.arrived(count + 100)
    await invalidate(one, "all")

    async def reached() -> bool:
        return (await other.post(B0, headers={"cache-control": "only-if-cached"})).status == 504

    await soon(reached)
    gate.set()
    answers = await asyncio.gather(*filling)
    assert [answer.status for answer in answers] == [200] * 100
    assert {answer.reason for answer in answers} == {"invalidated"}
    again = [
        await proxy.post(ask(number), headers={"cache-control": "only-if-cached"})
        for proxy in (one, other)
        for number in range(100)
    ]
    assert {answer.status for answer in again} == {504}
    count_left = "return #redis.call('SCAN', '0', 'MATCH', 'samewise:*:e:*', 'COUNT', 10000)[2]"

    async def swept() -> bool:
        return redis.command("EVAL", count_left, "0") == b":0\r\n"

    await until(swept)


async def test_a_proxy_that_was_cut_off_catches_up_when_it_returns(
    make_proxy: MakeProxy, mb: MockBackend, redis: RedisServer, on_redis: dict[str, Any]
) -> None:
    async with Shim.before(redis.port) as shim:
        one = await make_proxy(settings=on_redis)
        cut = await make_proxy(settings={**on_redis, "store.url": f"redis://127.0.0.1:{shim.port}/0"})
        await one.post(B0)

        async def shared() -> bool:
            return (await cut.post(B0)).cache == "HIT"

        await until(shared)
        shim.freeze()
        await invalidate(one, "model", "m")
        shim.thaw()

        async def caught_up() -> bool:
            return (await cut.post(B0, headers={"cache-control": "only-if-cached"})).status == 504

        await until(caught_up)


async def test_invalidations_outlive_a_restart(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings={"store.url": "sqlite:///entries.db"})
    for number in range(2):
        await proxy.post(ask(number), headers={"x-samewise-tags": f"t{number}"})
    await invalidate(proxy, "tag", "t0")
    await proxy.restart()
    assert (await proxy.post(ask(0))).cache == "MISS"
    assert (await proxy.post(ask(1))).cache == "HIT"
    await invalidate(proxy, "all")
    await proxy.restart()
    assert (await proxy.post(ask(1))).cache == "MISS"


async def test_what_the_journal_had_before_a_start_is_no_news(make_proxy: MakeProxy) -> None:
    async def told(number: int) -> None:
        await until(lambda: seen(number))

    async def seen(number: int) -> bool:
        return sum("control kind=invalidate" in line for line in proxy.log) == number

    proxy = await make_proxy(settings={"store.url": "sqlite:///entries.db"})
    for tag in ("a", "b"):
        await invalidate(proxy, "tag", tag)
    await told(2)
    await proxy.restart()
    await invalidate(proxy, "tag", "c")
    await told(1)
    (line,) = [line for line in proxy.log if "the journal was read" in line]
    assert "events" in line


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("where", ["file", "redis"])
async def test_of_many_entries_one_model_ends_at_once_and_hits_of_others_stay_hits(
    redis: RedisServer, on_redis: dict[str, Any], where: str
) -> None:
    """How long it takes is told by the load test, which refuses whatever isn't a hit."""
    from loadtest.invalidate import measure

    url = str(on_redis["store.url"]) if where == "redis" else None
    figures = await asyncio.to_thread(asyncio.run, measure(10_000, seconds=0.2, store=url))
    assert min(figures[time]["hits"] for time in ("before", "after")) > 0
    assert "entries=1000" in figures["freed"]
    if where == "redis":
        left = await _entries(redis)
        assert left == 9_050, "with the 50 that are asked for"


async def _entries(redis: RedisServer) -> int:
    count = "local n, c = 0, '0' repeat local r = redis.call('SCAN', c, 'MATCH', 'samewise:*:e:*', 'COUNT', 10000) "
    count += "c, n = r[1], n + #r[2] until c == '0' return n"
    reply = await asyncio.to_thread(redis.command, "EVAL", count, "0", timeout=60.0)
    return int(reply[1:])
