"""Hundreds of updates of a profile while four clients ask four proxies on one store, or one proxy of four workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.cases.test_profiles import VALUES, asking, told
from tests.support.mock_backend import MockBackend
from tests.support.proxy import Answered, Proxy, until
from tests.support.redis import RedisServer, redis_server  # noqa: F401

UPDATES = 300
WAVES = 4
CHECKED = 100


def update(number: int) -> dict[str, float]:
    """Three values that belong together: an answer that mixes two updates shows."""
    return {"temperature": 0.5 + number / 1000, "top_p": 1 - number / 2000, "presence_penalty": number / 1000}


@dataclass
class Client:
    """Asks its proxy all the time: new questions, old ones, bodies and streams."""

    proxy: Proxy
    number: int
    answers: list[Answered] = field(default_factory=list)
    asked: int = 0

    async def ask(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.asked += 1
            text = f"question {self.asked % 50}" if self.asked % 2 else f"client {self.number}, {self.asked}"
            body = asking(text, stream=self.asked % 3 == 0)
            self.answers.append(await self.proxy.post(body, headers={"Connection": "close"}))  # any worker's


async def updated(proxies: list[Proxy]) -> None:
    """Every update, some at once and each through another proxy."""
    for first in range(1, UPDATES + 1, WAVES):
        wave = range(first, min(first + WAVES, UPDATES + 1))
        await asyncio.gather(
            *(proxies[at % 4].admin("PUT", "/profiles/default", {"values": update(at)}) for at in wave)
        )


async def updated_once(proxies: list[Proxy]) -> None:
    made = await proxies[0].admin("PUT", "/profiles/default", {"values": update(0)})
    await everywhere(proxies, made["active"])


async def everywhere(proxies: list[Proxy], version: int) -> None:
    """Return when every process admits requests with this version."""

    async def done() -> bool:
        asked = [proxy.post(asking("which version?"), headers={"Connection": "close"}) for proxy in proxies * 8]
        return {answer.headers["x-samewise-snapshot"] for answer in await asyncio.gather(*asked)} == {
            f"default@{version}"
        }

    await until(done)


def said(answer: Answered) -> list[float]:
    """The values that the backend was asked with."""
    values = json.loads(answer.text)
    assert isinstance(values, list)
    return values


def of(values: dict[str, float]) -> list[float]:
    return [values[name] for name in VALUES]


async def entries_are_their_snapshots(proxies: list[Proxy], answers: list[Answered], versions: dict[str, Any]) -> None:
    """What is stored under an answer's key was asked with the values of the version that the answer names."""
    by_key = {str(answer.key): answer for answer in answers}
    for at, key in enumerate(sorted(by_key)[:CHECKED]):
        entry = await proxies[at % 4].admin("GET", f"/entries/{key}?full")
        name = by_key[key].headers["x-samewise-snapshot"]
        assert entry["snapshot"] == name
        assert [entry["request"][value] for value in VALUES] == of(versions[name])


async def four_proxies(make_proxy: MakeProxy, settings: dict[str, Any]) -> list[Proxy]:
    return list(await asyncio.gather(*(make_proxy(settings=settings) for _ in range(4))))


async def four_workers(make_proxy: MakeProxy, settings: dict[str, Any]) -> list[Proxy]:
    return [await make_proxy(settings=settings, flags=["--workers", "4"])] * 4


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("start", [four_proxies, four_workers])
async def test_every_answer_is_of_one_snapshot_and_every_entry_of_the_one_that_made_it(
    make_proxy: MakeProxy,
    mb: MockBackend,
    redis_server: RedisServer,  # noqa: F811
    start: Callable[[MakeProxy, dict[str, Any]], Awaitable[list[Proxy]]],
) -> None:
    mb.text = told
    proxies = await start(make_proxy, {"store.url": redis_server.url, "store.timeout": "10s"})
    await updated_once(proxies)
    clients = [Client(proxy, number) for number, proxy in enumerate(proxies)]
    stop = asyncio.Event()
    asking_all = [asyncio.create_task(client.ask(stop)) for client in clients]
    await updated(proxies)
    stop.set()
    await asyncio.gather(*asking_all)

    profile = await proxies[0].admin("GET", "/profiles/default")
    versions: dict[str, Any] = {f"default@{each['number']}": each["values"] for each in profile["versions"]}
    assert len(versions) == UPDATES + 2
    answers = [answer for client in clients for answer in client.answers]
    assert all(client.asked > 30 for client in clients)
    assert {answer.status for answer in answers} == {200}
    assert {answer.cache for answer in answers} <= {"HIT", "MISS", "COALESCED"}
    used = {answer.headers["x-samewise-snapshot"] for answer in answers}
    assert len(used) > 30

    mixed = [answer for answer in answers if said(answer) != of(versions[answer.headers["x-samewise-snapshot"]])]
    assert mixed == []
    await entries_are_their_snapshots(proxies, answers, versions)
    await everywhere(proxies, profile["active"])
