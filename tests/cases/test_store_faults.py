"""Whatever happens to the store, users get the upstream's answer, in bounded time, and never another one's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from tests.cases.conftest import MakeProxy
from tests.support.faults import answers, ask, echo, echoed, prompt, readable
from tests.support.mock_backend import MockBackend, Script
from tests.support.ports import refusing
from tests.support.proxy import B0, Answered, Proxy, until
from tests.support.redis import RedisServer, redis_server
from tests.support.shim import Shim, redis_commands, redis_error

__all__ = ["redis_server"]

LIMIT = 0.15
"""`[store] timeout` in seconds, where a store fails; where it works it has all the time of a busy machine."""


@pytest.fixture(autouse=True)
def _echo(mb: MockBackend) -> None:
    mb.text = echo


def on_redis(url: str, **more: Any) -> dict[str, Any]:
    return {"store.url": url, "store.memory": 0, **more}


def impatient(url: str) -> dict[str, Any]:
    return on_redis(url, **{"store.timeout": LIMIT})


def slowest(answers: Sequence[Answered]) -> float:
    return max(answer.seconds for answer in answers)


def in_time(answers: Sequence[Answered], beside: Sequence[Answered]) -> bool:
    """Whether each took no longer than the limit allows; what went `beside`, without a fault, tells of the machine."""
    return slowest(answers) < LIMIT + 1.5 + 10 * slowest(beside)


async def hits_again(proxy: Proxy, body: dict[str, Any]) -> None:
    async def hit() -> bool:
        return (await proxy.post(body)).cache == "HIT"

    await until(hit)


async def wait_for_entries(server: RedisServer, count: int) -> None:
    async def there() -> bool:
        return len(entries(server)) == count

    await until(there)


def entries(server: RedisServer) -> list[str]:
    """Names of all entries."""
    return re.findall(r"samewise:default:e:\{[0-9a-f]{64}\}", server.command("KEYS", "samewise:*:e:*").decode())


# --- whose reply is it --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 10])
async def test_callers_that_leave_never_shift_the_replies_of_others(
    make_proxy: MakeProxy, redis_server: RedisServer, connections: int
) -> None:
    async with Shim.before(redis_server.port, seed=connections) as shim:
        url = f"redis://127.0.0.1:{shim.port}/0?max_connections={connections}"
        proxy = await make_proxy(settings=on_redis(url))
        bodies = [prompt(f"question {number}") for number in range(100)]
        assert {answer.cache for answer in await answers(proxy, bodies)} == {"MISS"}
        await wait_for_entries(redis_server, 100)
        shim.delay = (0.05, 0.2)
        chance = random.Random(connections)
        tasks = [asyncio.create_task(proxy.post(body)) for body in bodies]
        for task in tasks:
            if chance.random() < 0.5:
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.25), task.cancel)
        left = await asyncio.gather(*tasks, return_exceptions=True)
        for body, answer in zip(bodies, left, strict=True):
            assert isinstance(answer, asyncio.CancelledError) or echoed(body, cast("Answered", answer))
        shim.delay = 0.0
        await hits_again(proxy, bodies[0])
        read = await answers(proxy, bodies)
        assert all(echoed(body, answer) for body, answer in zip(bodies, read, strict=True))
        assert {answer.cache for answer in read} == {"HIT"}


async def test_a_value_under_another_key_is_a_miss(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    writer, proxy = [await make_proxy(settings=on_redis(redis_server.url)) for _ in range(2)]
    one, other = prompt("one"), prompt("other")
    first, second = await writer.post(one), await writer.post(other)
    await wait_for_entries(redis_server, 2)
    name = "samewise:default:e:{%s}"
    redis_server.command("COPY", name % second.key, name % first.key, "REPLACE")
    again = await proxy.post(one)
    assert again.cache == "MISS"
    assert echoed(one, again)
    assert mb.count == 3
    assert await proxy.metric("samewise_store_errors_total", error="checksum") >= 1
    assert (await proxy.post(other)).body == second.body


async def test_values_overwritten_with_anything_are_misses(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    writer, proxy = [await make_proxy(settings=on_redis(redis_server.url)) for _ in range(2)]
    writes: list[tuple[str, *tuple[str | bytes, ...]]] = [
        ("SET", "{}"),
        ("SET", b"\x80\x04K\x01."),
        ("RPUSH", "x"),
        ("HSET", "f", "v"),
    ]
    for number, (command, *values) in enumerate(writes):
        body = prompt(f"p{number}")
        name = f"samewise:default:e:{{{(await writer.post(body)).key}}}"
        await wait_for_entries(redis_server, number + 1)
        redis_server.command("DEL", name)
        redis_server.command(command, name, *values)
        calls = mb.count
        answer = await proxy.post(body)
        assert (answer.status, answer.cache, mb.count) == (200, "MISS", calls + 1)
        assert echoed(body, answer)
        await hits_again(proxy, body)


async def test_sealed_entries_moved_edited_or_of_another_secret_are_misses(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    url = redis_server.url
    marker = "words that no random bytes hold by chance"
    body = prompt(marker)
    sealing = await make_proxy(settings=on_redis(url, **{"store.secret": "first"}))
    warm = await sealing.post(body)
    await wait_for_entries(redis_server, 1)
    name = f"samewise:default:e:{{{warm.key}}}"
    assert marker.encode() not in readable(redis_server.command("GET", name))
    unsealed = await make_proxy(settings=on_redis(url, **{"store.namespace": "unsealed"}))
    await unsealed.post(body)

    async def shown() -> bool:
        return marker.encode() in readable(redis_server.command("GET", name.replace("default", "unsealed")))

    await until(shown)

    other = await make_proxy(settings=on_redis(url, **{"store.secret": "second"}))
    none = await make_proxy(settings=on_redis(url, **{"cache.mode": "read-only"}))
    rotated = await make_proxy(
        settings=on_redis(url, **{"store.secret": "second", "store.old_secrets": ["first"], "cache.mode": "read-only"})
    )
    assert (await rotated.post(body)).body == warm.body
    assert (await none.post(body)).cache == "MISS"
    assert await none.metric("samewise_store_errors_total", error="sealed") >= 1
    assert (await other.post(body)).cache == "MISS"

    async def replaced() -> bool:
        return (await sealing.post(body)).cache == "MISS"

    await until(replaced)


# --- away, frozen, slow -------------------------------------------------------------------------------


async def test_a_frozen_redis_costs_the_timeout_then_nothing_and_is_used_again_by_itself(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy, plain = await make_proxy(settings=impatient(redis_server.url)), await make_proxy()
    await hits_again(proxy, B0)
    redis_server.stop()
    together, beside = [await answers(each, [prompt(f"p{number}") for number in range(50)]) for each in (proxy, plain)]
    assert {answer.status for answer in together} == {200}
    assert in_time(together, beside)
    assert {answer.reason for answer in together} <= {"store-down"}
    quick, usual = [], []
    for number in range(20):
        quick.append((await proxy.post(prompt(f"q{number}"))).seconds)
        usual.append((await plain.post(prompt(f"q{number}"))).seconds)
    assert statistics.median(quick) < LIMIT / 2 + 3 * statistics.median(usual)
    ready = await proxy.request("GET", "/readyz")
    assert (ready.status, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["degraded"] == ["store:redis"]
    assert (await proxy.request("GET", "/healthz")).status == 200
    redis_server.cont()
    await hits_again(proxy, B0)

    async def ready_again() -> bool:
        return bool((await proxy.request("GET", "/readyz")).json()["status"] == "ready")

    await until(ready_again)


@pytest.mark.parametrize("where", ["refused", "blackholed", "dns", "password"])
async def test_a_start_without_redis_serves_at_once_and_says_so_once(
    make_proxy: MakeProxy, redis_server: RedisServer, where: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        shim = await stack.enter_async_context(Shim.before(redis_server.port))
        deaf = stack.enter_context(refusing())
        shim.freeze()
        url = {
            "refused": f"redis://127.0.0.1:{deaf}",
            "blackholed": f"redis://127.0.0.1:{shim.port}",
            "dns": "redis://no-such-host.invalid",
            "password": f"redis://:wrong@127.0.0.1:{redis_server.port}",
        }[where]
        proxy, plain = await asyncio.gather(make_proxy(settings=impatient(url)), make_proxy())
        assert proxy.seconds_to_ready < 5 + 3 * plain.seconds_to_ready
        for number in range(8):
            answer, beside = await proxy.post(B0), await plain.post(prompt(f"p{number}"))
            assert answer.status == 200
            assert answer.reason == "store-down" or answer.cache == "HIT"
            assert in_time([answer], [beside])

        async def said() -> bool:
            return any("store-error" in line or "a store can't be asked" in line for line in proxy.log)

        await until(said)
        told = [line for line in proxy.log if "store-error" in line or "a store can't be asked" in line]
        kinds = [re.search(r"error=(\S+)", line) for line in told]
        assert len(told) == len({found[1] for found in kinds if found}) >= 1
        assert not any("wrong" in line for line in proxy.log)


async def test_caching_begins_when_redis_appears(make_proxy: MakeProxy, redis_server: RedisServer) -> None:
    redis_server.kill()
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    assert (await proxy.post(B0)).reason == "store-down"
    redis_server.start()
    await hits_again(proxy, B0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_however_long_redis_was_away_it_is_tried_now_and_then_and_used_again(
    make_proxy: MakeProxy, redis_server: RedisServer, how: str
) -> None:
    """So long that the pause between two tries is the longest that there is (4 s), several times."""
    async with Shim.before(redis_server.port) as shim:
        proxy = await make_proxy(settings=impatient(f"redis://127.0.0.1:{shim.port}"))
        await proxy.post(B0)
        redis_server.kill() if how == "killed" else shim.freeze()
        began, before = time.monotonic(), shim.accepted
        while (passed := time.monotonic() - began) < 20:
            assert (await proxy.post(B0)).status == 200
            await asyncio.sleep(0.1)
        assert shim.accepted - before <= passed + 16, "one connection a second, and those that were open"
        redis_server.restart()
        shim.thaw()
        shim.drop()
        await hits_again(proxy, B0)


async def test_a_redis_that_was_restarted_empty_is_filled_again(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    first = await proxy.post(B0)
    await wait_for_entries(redis_server, 1)
    redis_server.restart()
    assert (await proxy.post(B0)).status == 200
    await hits_again(proxy, B0)
    assert (await proxy.post(B0)).body != first.body


# --- what a server answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOAUTH Authentication required.",
        "READONLY You can't write against a read only replica.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOPERM this user has no permissions to run the 'get' command",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "ERR max number of clients reached",
        "BUSY Redis is busy running a script.",
    ],
    ids=lambda message: message.split()[0],
)
async def test_an_error_of_redis_is_counted_by_name_and_is_no_users_error(
    make_proxy: MakeProxy, redis_server: RedisServer, message: str
) -> None:
    async with Shim.before(redis_server.port) as shim:
        proxy = await make_proxy(settings=on_redis(f"redis://127.0.0.1:{shim.port}"))
        await proxy.post(B0)
        await hits_again(proxy, B0)
        shim.answer = redis_error(message)
        for number in range(8):
            answer = await proxy.post(prompt(f"p{number}"))
            assert (answer.status, answer.reason) == (200, "store-down")
        word = message.partition(" ")[0]
        kind = "too-many-clients" if word == "ERR" else word.lower()
        assert await proxy.metric("samewise_store_errors_total", error=kind) >= 1
        shim.answer = None
        await hits_again(proxy, B0)


async def test_cut_in_the_middle_of_a_reply_is_a_miss_and_heals(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    async with Shim.before(redis_server.port) as shim:
        proxy = await make_proxy(settings=on_redis(f"redis://127.0.0.1:{shim.port}"))
        await proxy.post(B0)
        await hits_again(proxy, B0)
        for size in (1, 3, 40, 200):
            shim.cut_after(size)
            answer = await proxy.post(B0)
            assert answer.status == 200
            assert echoed(B0, answer)
            shim.cut_after(None)
            await hits_again(proxy, B0)


async def test_full_memory_is_no_users_error_and_what_is_there_still_hits(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    warm = await proxy.post(B0)
    await wait_for_entries(redis_server, 1)
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    redis_server.command("CONFIG", "SET", "maxmemory", "100kb")
    redis_server.command("CONFIG", "RESETSTAT")
    assert {answer.status for answer in await answers(proxy, [prompt(f"p{n}") for n in range(100)])} == {200}
    assert (await proxy.post(B0)).body == warm.body

    async def counted() -> bool:
        return await proxy.metric("samewise_store_errors_total", error="oom") > 50

    await until(counted)
    stats = redis_server.command("INFO", "commandstats").decode()
    writes = [int(found) for found in re.findall(r"cmdstat_eval\w*:calls=(\d+)", stats)]
    assert sum(writes) <= 200
    redis_server.command("CONFIG", "SET", "maxmemory", "100mb")
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await hits_again(proxy, prompt("after"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        "noeviction",
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ],
)
async def test_under_every_eviction_policy_what_is_served_is_right(
    make_proxy: MakeProxy, redis_server: RedisServer, policy: str
) -> None:
    redis_server.command("CONFIG", "SET", "maxmemory-policy", policy)
    used = int(re.search(r"used_memory:(\d+)", redis_server.command("INFO", "memory").decode())[1])  # type: ignore[index]
    redis_server.command("CONFIG", "SET", "maxmemory", str(used + (2 << 20)))
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    chance = random.Random(policy)
    bodies = [prompt(f"{number} {chance.randbytes(10_000).hex()}") for number in range(200)]
    for _ in range(2):
        for start in range(0, 200, 50):
            part = bodies[start : start + 50]
            got = await answers(proxy, part)
            assert {answer.status for answer in got} == {200}
            assert all(echoed(body, answer) for body, answer in zip(part, got, strict=True))
    assert len(entries(redis_server)) < 200


# --- what reads and writes cost -----------------------------------------------------------------------


async def test_reads_that_fail_are_no_misses_and_cause_no_writes(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    async with Shim.before(redis_server.port) as shim:
        writer = await make_proxy(settings=on_redis(redis_server.url))
        proxy = await make_proxy(settings=impatient(f"redis://127.0.0.1:{shim.port}"))
        bodies = [prompt(f"p{number}") for number in range(20)]
        await answers(writer, bodies)
        await wait_for_entries(redis_server, 20)
        await hits_again(proxy, bodies[0])
        shim.freeze()
        seen = len(shim.requests)
        got = await answers(proxy, bodies)
        assert {answer.status for answer in got} == {200}
        assert await proxy.metric("samewise_store_errors_total", error="timeout") >= 1
        shim.thaw()
        await hits_again(proxy, bodies[0])
        commands = [name for chunk in shim.requests[seen:] for name in redis_commands(chunk)]
        assert commands.count("EVALSHA") + commands.count("EVAL") <= 4


async def test_everything_in_redis_has_a_time_to_live_but_the_journal(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    await answers(proxy, [prompt(f"p{number}") for number in range(20)])
    await proxy.post({**B0, "stream": True})
    first = await proxy.post(B0, headers={"x-samewise-tags": "t"})
    await proxy.admin("POST", "/invalidate", {"scope": "key", "value": first.key})
    await proxy.admin("POST", "/invalidate", {"scope": "tag", "value": "t"})
    await proxy.post(B0)
    names: list[str] = []

    async def written() -> bool:
        names[:] = re.findall(r"samewise:\S+", redis_server.command("KEYS", "*").decode())
        return len(names) > 20

    await until(written)
    for name in names:
        left = int(redis_server.command("PTTL", name)[1:])
        assert left > 0 or left == -2 or name == "samewise:default:journal", name


@pytest.mark.parametrize(
    ("ttl", "milliseconds"), [("90.5", 90_500), ("600", 600_000), ("1000000000000", 30 * 86_400_000)]
)
async def test_a_time_to_live_is_what_was_asked(
    make_proxy: MakeProxy, redis_server: RedisServer, ttl: str, milliseconds: int
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    began = time.monotonic()
    answer = await proxy.post(B0, headers={"x-samewise-ttl": ttl})
    assert answer.status == 200
    name = f"samewise:default:e:{{{answer.key}}}"
    left = -2

    async def there() -> bool:
        nonlocal left
        left = int(redis_server.command("PTTL", name)[1:])
        return left > 0

    await until(there)
    assert milliseconds - 1000 * (time.monotonic() - began) - 1 <= left <= milliseconds


@pytest.mark.parametrize("ttl", ["0", "-1", "soon", "1e3", str(2**63), "nan"])
async def test_an_absurd_time_to_live_is_refused_or_keeps_nothing(proxy: Proxy, mb: MockBackend, ttl: str) -> None:
    answer = await proxy.post(B0, headers={"x-samewise-ttl": ttl})
    assert answer.status in {200, 400}
    if answer.status == 200 and ttl == "0":
        assert (await proxy.post(B0)).cache == "MISS"
    assert (await proxy.post(prompt("next"))).status == 200


# --- connections and writes ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_connections_never_pile_up(make_proxy: MakeProxy, redis_server: RedisServer) -> None:
    async with Shim.before(redis_server.port) as shim:
        proxy = await make_proxy(settings=on_redis(f"redis://127.0.0.1:{shim.port}?max_connections=8"))
        await proxy.post(B0)
        files = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
        chance = random.Random(11)
        for _ in range(20):
            tasks = [asyncio.create_task(proxy.post(prompt(f"p{chance.randrange(300)}"))) for _ in range(100)]
            for task in chance.sample(tasks, 30):
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.05), task.cancel)
            asyncio.get_running_loop().call_later(chance.uniform(0, 0.05), shim.drop)
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(answer, asyncio.CancelledError) or cast("Answered", answer).status == 200
        await hits_again(proxy, B0)

        async def few() -> bool:
            return redis_server.command("CLIENT", "LIST").count(b" addr=") <= 8 + 1

        await until(few)
        await proxy.session.close()

        async def settled() -> bool:
            now = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
            return now <= files + 8 + 66

        await until(settled)


@pytest.mark.slow
async def test_every_miss_becomes_an_entry_and_a_stop_leaves_none_half(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url))
    for start in range(0, 1000, 100):
        await answers(proxy, [prompt(f"p{number}") for number in range(start, start + 100)])
    await wait_for_entries(redis_server, 1000)
    last = [prompt(f"last {number}") for number in range(200)]
    assert {answer.status for answer in await answers(proxy, last)} == {200}
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert not [line for line in proxy.log if "Task was destroyed" in line or "Traceback" in line]
    again = await make_proxy(settings=on_redis(redis_server.url))
    read = await answers(again, last)
    assert all(echoed(body, answer) for body, answer in zip(last, read, strict=True))
    assert [answer.cache for answer in read].count("HIT") == 200


async def test_what_is_too_large_is_given_and_not_kept(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings=on_redis(redis_server.url, **{"store.max_entry": "1MiB"}))
    await proxy.post(B0)
    before = rss(proxy)
    mb.text = lambda body, number: "x" * (30 << 20)
    large = await proxy.post(prompt("large"))
    assert len(large.text) == 30 << 20
    assert (large.cache, large.reason) == ("MISS", "too-large")
    stream = await proxy.post({**prompt("large stream"), "stream": True})
    assert len(stream.text) == 30 << 20
    assert (await proxy.post(prompt("large"))).cache == "MISS"

    async def back() -> bool:
        return rss(proxy) < before + (80 << 20)

    await until(back)
    mb.text = lambda body, number: ""
    frame = len((await proxy.post(prompt("frame"))).body)
    for size, reason in (((1 << 20) - frame, None), ((1 << 20) - frame + 200, "too-large")):
        mb.text = lambda body, number, size=size: "y" * size  # type: ignore[misc]
        assert (await proxy.post(prompt(f"of {size}"))).reason == reason


def rss(proxy: Proxy) -> int:
    """Bytes of memory that the process holds."""
    return int(Path(f"/proc/{proxy.pid}/statm").read_text().split()[1]) * 4096


# --- probes -------------------------------------------------------------------------------------------


async def test_probes_tell_what_is_down_and_answer_whatever_is_down(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(
        settings=on_redis(redis_server.url, **{"auth.keys": [{"tenant": "a", "sha256": "0" * 64}]})
    )
    for _ in range(3):
        for path in ("/healthz", "/readyz"):
            assert (await proxy.request("GET", path)).status == 200
    assert entries(redis_server) == []
    redis_server.kill()

    async def named() -> bool:
        ready = await proxy.request("GET", "/readyz")
        assert ready.status == 200
        return "store:redis" in ready.json()["degraded"]

    await until(named)
    assert (await proxy.request("GET", "/healthz")).status == 200
    await mb.stop()

    async def unready() -> bool:
        return (await proxy.request("GET", "/readyz")).status == 503

    await until(unready)
    assert (await proxy.request("GET", "/healthz")).status == 200


# --- SQLite -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_sqlite_survives_power_cuts_under_load(tmp_path: Path, mb: MockBackend) -> None:
    """Each when so many of its questions are answered; the first load, which is known to be kept, ends in order."""
    mb.text = echo
    cuts = 12
    url = f"sqlite:///{tmp_path / 'entries.db'}"
    chance = random.Random(50)
    settings = {"store.url": url, "store.memory": 0}
    known: dict[str, bytes] = {}
    bodies = {f"{cut} {number}": prompt(f"{cut} {number}") for cut in range(cuts) for number in range(60)}
    hits = 0
    for cut in range(cuts):
        proxy = Proxy(tmp_path / "proxy", mb.url, settings=settings)
        await proxy.start()
        for name in chance.sample(sorted(known), min(20, len(known))):
            answer = await proxy.post(bodies[name])
            assert answer.status == 200
            assert echoed(bodies[name], answer)
            assert answer.cache != "HIT" or answer.body == known[name]
            hits += answer.cache == "HIT"
            known[name] = answer.body
        names = [f"{cut} {number}" for number in range(60)]
        tasks = {name: asyncio.create_task(proxy.post(bodies[name])) for name in names}
        waiting = asyncio.as_completed(tasks.values())
        for _ in range(chance.randrange(60) if cut else 60):
            await next(waiting)
        await (proxy.kill() if cut else proxy.stop())
        for name, task in tasks.items():
            with contextlib.suppress(aiohttp.ClientError, OSError):
                known[name] = (await task).body
        assert not [line for line in proxy.log if "set aside" in line or "corrupt" in line]
    assert hits > cuts


async def test_a_corrupt_file_is_set_aside_by_name_and_a_new_one_begun(tmp_path: Path, make_proxy: MakeProxy) -> None:
    path = tmp_path / "entries.db"
    settings = {"store.url": f"sqlite:///{path}", "store.memory": 0}
    first = await make_proxy(settings=settings)
    await first.post(B0)
    await first.stop()
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
    again = await make_proxy(settings=settings)
    assert (await again.post(B0)).cache == "MISS"
    await hits_again(again, B0)
    aside = [each.name for each in tmp_path.iterdir() if each.name.startswith("entries.db.")]

    async def named() -> bool:
        return any(name in line for name in aside for line in again.log)

    await until(named)


async def test_a_locked_file_is_no_users_error(tmp_path: Path, make_proxy: MakeProxy) -> None:
    import sqlite3

    path = tmp_path / "entries.db"
    proxy = await make_proxy(settings={"store.url": f"sqlite:///{path}", "store.memory": 0, "store.timeout": LIMIT})
    plain = await make_proxy()
    await hits_again(proxy, B0)
    lock = sqlite3.connect(path, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        got, beside = [await answers(each, [prompt(f"p{number}") for number in range(20)]) for each in (proxy, plain)]
        assert {answer.status for answer in got} == {200}
        assert in_time(got, beside)
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    await hits_again(proxy, prompt("after"))


async def test_the_log_and_metrics_of_faults_hold_no_prompt(make_proxy: MakeProxy, redis_server: RedisServer) -> None:
    proxy = await make_proxy(settings=impatient(redis_server.url))
    redis_server.stop()
    await answers(proxy, [prompt(f"very-secret-words {number}") for number in range(10)])
    redis_server.cont()
    metrics = (await proxy.request("GET", "/metrics", admin=True)).body
    status = json.dumps(await proxy.admin("GET", "/status"))
    assert "very-secret-words" not in "".join(proxy.log) + metrics.decode() + status


async def test_a_slow_redis_within_its_timeout_still_hits(make_proxy: MakeProxy, redis_server: RedisServer) -> None:
    async with Shim.before(redis_server.port) as shim:
        proxy = await make_proxy(settings=on_redis(f"redis://127.0.0.1:{shim.port}"))
        await proxy.post(B0)
        await hits_again(proxy, B0)
        shim.delay = 0.1
        answer = await ask(proxy, B0)
        assert (answer.cache, answer.status) == ("HIT", 200)


async def test_a_redis_that_is_away_delays_no_stream(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    proxy, plain = await make_proxy(settings=impatient(redis_server.url)), await make_proxy()
    mb.always(Script(gap=0.01))
    redis_server.stop()
    got, beside = [await each.post({**prompt("a b c d e f"), "stream": True}) for each in (proxy, plain)]
    assert got.status == 200
    assert got.data()[-1] == "[DONE]"
    assert in_time([got], [beside])
    redis_server.cont()


async def test_what_was_ended_before_a_start_without_redis_stays_ended_when_redis_comes(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    async with Shim.before(redis_server.port) as shim:
        url = f"redis://127.0.0.1:{shim.port}"
        bodies = [prompt(f"p{number}") for number in range(30)]
        first = await make_proxy(settings=on_redis(url))
        old = {answer.body for answer in await answers(first, bodies)}
        await wait_for_entries(redis_server, 30)
        names = entries(redis_server)
        for name in names:
            redis_server.command("COPY", name, f"saved:{name}")
        await first.admin("POST", "/invalidate", {"scope": "all"})
        await first.kill()
        for name in names:  # as they were before anything was swept
            redis_server.command("COPY", f"saved:{name}", name, "REPLACE")
        assert len(entries(redis_server)) == 30
        shim.freeze()
        second = await make_proxy(settings=impatient(url))
        for _ in range(6):
            await second.post(prompt("none of them"))
        shim.thaw()
        began = time.monotonic()
        while time.monotonic() - began < 6:
            for body in bodies:
                assert (await second.post(body)).body not in old
        await hits_again(second, bodies[0])
