"""One contract for leases, whoever gives them out: one asks, the others wait, and a dead one is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from samewise.ports import Leases
from samewise.store import redis_url
from samewise.store.redis_channel import RedisChannel
from samewise.store.redis_leases import BEAT, SILENCE, RedisLeases
from samewise.store.redis_link import RedisLink
from samewise.workers.leases import Desk, DeskLeases
from tests.support.patience import ENOUGH
from tests.support.proxy import soon
from tests.support.redis import RedisServer, redis_server
from tests.support.shim import Shim

__all__ = ["redis_server"]

Open = Callable[[], Awaitable[Leases]]
KEY = "k" * 64


class Real:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


def on_redis(
    port: int, written: Callable[[str], Awaitable[None]] | None = None, *, timeout: float = ENOUGH
) -> RedisLeases:
    async def at_once(key: str) -> None: ...

    target = redis_url.parse(f"redis://127.0.0.1:{port}")
    link = RedisLink(target, timeout=timeout, clock=Real(), on_notice=lambda *_: None)
    return RedisLeases(link, RedisChannel(link.target), namespace="t", written=written or at_once)


async def listening(leases: RedisLeases) -> RedisLeases:
    leases.open()
    async with asyncio.timeout(ENOUGH):
        while not leases._channel.hears:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return leases


@pytest.fixture(params=["redis", "desk"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | None]:
    """Where the leases are, unless that is a desk."""
    with contextlib.ExitStack() as stack:
        made = RedisServer() if request.param == "redis" else None
        if made is not None:
            stack.callback(made.close)
        yield made


@pytest.fixture
async def opens(server: RedisServer | None, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the leases of one more process."""
    made: list[Leases] = []
    async with contextlib.AsyncExitStack() as stack:
        if server is not None:

            async def one() -> Leases:
                made.append(await listening(on_redis(server.port)))
                return made[-1]

        else:
            desk = Desk()
            await desk.open(str(tmp_path / "d"))
            stack.callback(desk.close)

            async def one() -> Leases:
                async def flushed() -> None: ...

                leases = DeskLeases(str(tmp_path / "d"), flushed)
                await leases.open()
                async with asyncio.timeout(ENOUGH):
                    while leases._writer is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                made.append(leases)
                return leases

        yield one
        for leases in made:
            await leases.close()


def waiting(leases: Leases, key: str = KEY, since: int = 0) -> asyncio.Task[Any]:
    return asyncio.ensure_future(leases.turn(key, since))


async def any_done(tasks: Sequence[asyncio.Task[Any]]) -> bool:
    return any(task.done() for task in tasks)


async def settle(server: RedisServer | None) -> None:
    """Return when an answer would have come, were there one: whoever has a part in it had a turn, several times."""
    for _ in range(10):
        await asyncio.sleep(0.01)
        if server is not None:
            await asyncio.to_thread(server.command, "PING")


@pytest.mark.parametrize("stored", [True, False])
async def test_one_asks_and_the_others_hear_of_its_end(opens: Open, server: RedisServer | None, stored: bool) -> None:
    one, other, third = await opens(), await opens(), await opens()
    assert await one.turn(KEY, 0) == "mine"
    waits = [waiting(each) for each in (other, other, third)]
    await settle(server)
    assert not any(task.done() for task in waits)
    await one.release(KEY, 0, stored=stored)
    async with asyncio.timeout(ENOUGH):
        assert await asyncio.gather(*waits) == ["landed" if stored else "free"] * 3


async def test_other_keys_and_later_invalidations_wait_for_nobody(opens: Open) -> None:
    one, other = await opens(), await opens()
    assert await one.turn(KEY, 0) == "mine"
    assert await other.turn("o" * 64, 0) == "mine"
    assert await other.turn(KEY, 7) == "mine"
    await one.release(KEY, 0, stored=False)
    assert await one.turn(KEY, 0) == "mine"


async def test_one_that_died_is_replaced_within_a_second(opens: Open, server: RedisServer | None) -> None:
    one, other, third = await opens(), await opens(), await opens()
    assert await one.turn(KEY, 0) == "mine"
    waits = [waiting(each) for each in (other, third)]
    await asyncio.wait(waits, timeout=1.5)
    assert not any(task.done() for task in waits), "the holder lives, and is waited for"
    await one.close()
    await soon(lambda: any_done(waits), seconds=2)
    (task,), left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    assert task.result() == "mine"
    holder = other if task is waits[0] else third
    await settle(server)
    assert not any(task.done() for task in left)
    await holder.release(KEY, 0, stored=True)
    async with asyncio.timeout(ENOUGH):
        assert [await task for task in left] == ["landed"]


async def test_a_silence_before_the_lease_is_no_silence_of_its_holder(opens: Open, server: RedisServer | None) -> None:
    one, other = await opens(), await opens()
    assert await one.turn(KEY, 0) == "mine"
    waits = waiting(other)
    await settle(server)
    await one.release(KEY, 0, stored=True)
    assert await waits == "landed"
    await asyncio.sleep(SILENCE + 0.1)
    assert await one.turn("o" * 64, 0) == "mine"
    waits = waiting(other, "o" * 64)
    await settle(server)
    assert not waits.done()
    await one.release("o" * 64, 0, stored=True)
    assert await waits == "landed"


async def test_who_stops_waiting_holds_nothing(opens: Open, server: RedisServer | None) -> None:
    one, other, third = await opens(), await opens(), await opens()
    assert await one.turn(KEY, 0) == "mine"
    gone = waiting(other)
    stays = waiting(third)
    await settle(server)
    gone.cancel()
    await one.release(KEY, 0, stored=False)
    assert await stays == "free"
    assert await third.turn(KEY, 0) == "mine"


async def test_a_race_has_one_winner(opens: Open, server: RedisServer | None) -> None:
    all_of_them = [await opens() for _ in range(5)]
    for round_ in range(20):
        waits = [waiting(each, f"{round_:064}") for each in all_of_them]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await settle(server)
        winners = [at for at, task in enumerate(waits) if task.done()]
        assert len(winners) == 1 and len(done) == 1
        await all_of_them[winners[0]].release(f"{round_:064}", 0, stored=True)
        async with asyncio.timeout(ENOUGH):
            assert sorted(await asyncio.gather(*waits)) == ["landed"] * 4 + ["mine"]


async def test_an_answer_that_landed_just_now_is_not_asked_for_again(tmp_path: Path) -> None:
    desk = Desk()
    await desk.open(str(tmp_path / "d"))

    async def flushed() -> None: ...

    leases = DeskLeases(str(tmp_path / "d"), flushed)
    assert await leases.turn(KEY, 0) == "free", "nobody is connected yet"
    await leases.open()
    while leases._writer is None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert await leases.turn(KEY, 0) == "mine"
    await leases.release(KEY, 0, stored=True)
    assert await leases.turn(KEY, 0) == "landed"
    assert await leases.turn("n" * 64, 0) == "mine"
    await leases.close()
    desk.close()


async def test_what_the_store_has_is_not_asked_for(redis_server: RedisServer) -> None:
    leases = await listening(on_redis(redis_server.port))
    redis_server.command("SET", f"samewise:t:e:{{{KEY}}}", "an entry")
    assert await leases.turn(KEY, 0) == "landed"
    await leases.close()


async def waited_for(redis_server: RedisServer) -> tuple[RedisLeases, RedisLeases, asyncio.Task[Any]]:
    """One that asks, another that hears of it, and its wait."""
    one, other = await listening(on_redis(redis_server.port)), await listening(on_redis(redis_server.port))
    assert await one.turn(KEY, 0) == "mine"
    wait = waiting(other)
    await settle(redis_server)
    return one, other, wait


async def test_who_was_too_busy_to_listen_calls_nobody_dead_for_it(redis_server: RedisServer) -> None:
    one, other, wait = await waited_for(redis_server)
    time.sleep(SILENCE + 2 * BEAT)  # noqa: ASYNC251  (both stand still)
    await settle(redis_server)
    assert not wait.done()
    await one.release(KEY, 0, stored=True)
    assert await wait == "landed"
    await one.close()
    await other.close()


async def test_one_that_died_when_its_entry_was_there_is_replaced_by_nobody(redis_server: RedisServer) -> None:
    one, other, wait = await waited_for(redis_server)
    redis_server.command("SET", f"samewise:t:e:{{{KEY}}}", "an entry")
    await one.close()
    assert await wait == "landed"
    await other.close()


async def test_the_end_is_told_when_the_entry_is_there(redis_server: RedisServer) -> None:
    there = asyncio.Event()

    async def written(key: str) -> None:
        await there.wait()

    one, other = await listening(on_redis(redis_server.port, written)), await listening(on_redis(redis_server.port))
    assert await one.turn(KEY, 0) == "mine"
    wait = waiting(other)
    releasing = asyncio.ensure_future(one.release(KEY, 0, stored=True))
    await settle(redis_server)
    assert not wait.done()
    there.set()
    assert await wait == "landed"
    await releasing
    await one.close()
    await other.close()


async def test_a_redis_that_fails_costs_a_second_and_no_answer(redis_server: RedisServer) -> None:
    async with Shim.before(redis_server.port) as shim:
        one, other = [await listening(on_redis(shim.port, timeout=1.0)) for _ in range(2)]
        assert await one.turn(KEY, 0) == "mine"
        wait = waiting(other)
        await settle(redis_server)
        shim.drop()
        await soon(lambda: any_done([wait]), seconds=3)
        assert await wait in ("free", "mine")
        shim.freeze()
        wait = waiting(other, "n" * 64)
        await soon(lambda: any_done([wait]), seconds=3)
        assert await wait == "free"
        await one.release(KEY, 0, stored=True)
        shim.refuse()
        assert await one.turn("m" * 64, 0) == "free"
        await one.close()
        await other.close()


async def test_a_user_who_may_not_listen_has_no_leases_and_all_else(redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "u", "on", ">p", "~samewise:*", "+@all", "-subscribe", "resetchannels")
    target = redis_url.parse(f"redis://u:p@127.0.0.1:{redis_server.port}")
    link = RedisLink(target, timeout=ENOUGH, clock=Real(), on_notice=lambda *_: None)

    async def at_once(key: str) -> None: ...

    leases = RedisLeases(link, RedisChannel(link.target), namespace="t", written=at_once)
    leases.open()
    await asyncio.sleep(0.1)
    assert await leases.turn(KEY, 0) == "free"
    assert await link.call("PING") in (b"PONG", True)
    await leases.close()
