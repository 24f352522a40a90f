"""What breaks, one thing after another, and mends again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadtest.chaos.world import World
from tests.support.shim import redis_error

MENDS = 4.0
"""Seconds after a backend's fault for which errors may still come of it: a call that began within it ends."""
Fault = Callable[[World, float], Awaitable[None]]


async def redis_freezes(world: World, seconds: float) -> None:
    world.redis.stop()
    await asyncio.sleep(seconds)
    world.redis.cont()


async def redis_dies(world: World, seconds: float) -> None:
    world.redis.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(world.redis.start)


async def redis_is_slow(world: World, seconds: float) -> None:
    world.shim.delay = (0.0, 0.25)
    await asyncio.sleep(seconds)
    world.shim.delay = 0.0


async def redis_is_cut(world: World, seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        world.shim.cut_after(world.chance.randrange(1, 3000))
        await asyncio.sleep(0.1)
    world.shim.cut_after(None)


async def redis_is_gone(world: World, seconds: float) -> None:
    world.shim.refuse()
    await asyncio.sleep(seconds)
    await world.shim.accept()


async def redis_refuses(world: World, seconds: float) -> None:
    word = world.chance.choice(("LOADING", "READONLY", "OOM", "MASTERDOWN", "NOAUTH", "BUSY"))
    world.shim.answer = redis_error(f"{word} chaos")
    await asyncio.sleep(seconds)
    world.shim.answer = None


async def redis_lies(world: World, seconds: float) -> None:
    """Entries are put under each other's names."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        reply = await asyncio.to_thread(world.redis.command, "RANDOMKEY")
        other = await asyncio.to_thread(world.redis.command, "RANDOMKEY")
        names = [part.split(b"\r\n")[1] for part in (reply, other) if part.startswith(b"$") and b":e:" in part]
        if len(names) == 2:
            await asyncio.to_thread(world.redis.command, "COPY", names[0], names[1], "REPLACE")
        await asyncio.sleep(0.02)


async def backends_fail(world: World, seconds: float) -> None:
    with world.truth.breaking("backend", after=MENDS):
        for backend in world.backends:
            backend.failing = world.chance.choice((0.1, 0.5, 1.0))
        await asyncio.sleep(seconds)
        for backend in world.backends:
            backend.failing = 0.0


async def a_backend_goes(world: World, seconds: float) -> None:
    backend = world.chance.choice(world.backends).mock
    with world.truth.breaking("backend", after=MENDS):
        port = backend.port
        await backend.stop()
        await asyncio.sleep(seconds)
        await backend.start(port)


async def the_model_changes(world: World, seconds: float) -> None:
    identity = f"{world.chance.randrange(3):032x}"
    for backend in world.backends:
        backend.mock.become(identity)
        await asyncio.sleep(seconds / 2)


async def a_proxy_is_killed(world: World, seconds: float) -> None:
    number = world.chance.randrange(2)
    with world.truth.breaking(f"proxy-{number}", after=0.2):
        await world.proxies[number].kill()
        await asyncio.sleep(seconds / 4)
        await world.proxies[number].start()


async def a_proxy_restarts(world: World, seconds: float) -> None:
    number = world.chance.randrange(2)
    with world.truth.breaking(f"proxy-{number}", after=0.2):
        await world.proxies[number].restart()


FAULTS: tuple[Fault, ...] = (
    redis_freezes,
    redis_dies,
    redis_is_slow,
    redis_is_cut,
    redis_is_gone,
    redis_refuses,
    redis_lies,
    backends_fail,
    a_backend_goes,
    the_model_changes,
    a_proxy_is_killed,
    a_proxy_restarts,
)


async def go_on(world: World, told: dict[str, int], stop: asyncio.Event) -> None:
    """One fault after another, sometimes two at once, until `stop`; then everything is well."""
    order = list(FAULTS)
    while not stop.is_set():
        world.chance.shuffle(order)
        for first, second in zip(order[::2], order[1::2], strict=True):
            if stop.is_set():
                return
            seconds = world.chance.uniform(0.2, 1.2)
            both = (first, second) if world.chance.random() < 0.4 and apart(first, second) else (first,)
            for fault in both:
                told[fault.__name__] = told.get(fault.__name__, 0) + 1
            await asyncio.gather(*(fault(world, seconds) for fault in both))
            await asyncio.sleep(world.chance.uniform(0.0, 1.0))


def apart(first: Fault, second: Fault) -> bool:
    """True where the two break different things: what is dead can't be frozen, nor told a lie."""
    return _place(first) != _place(second)


def _place(fault: Fault) -> str:
    return fault.__name__.removeprefix("a_").removeprefix("the_").partition("_")[0].rstrip("s")
