"""Every kind of store, opened the way that the product opens it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from samewise.store.factory import Stores, open_store
from tests.support.clock import ManualClock
from tests.support.patience import ENOUGH
from tests.support.redis import RedisServer, _cluster, redis_cluster, redis_server, shared_redis

__all__ = ["_cluster", "redis_cluster", "redis_server", "shared_redis"]

KINDS = ["memory", "sqlite", "redis", "memory+sqlite", "memory+redis"]


class Notices:
    """What the stores told, as (kind, attributes)."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, str]]] = []

    def __call__(self, kind: str, attributes: Mapping[str, str]) -> None:
        self.all.append((kind, dict(attributes)))

    def count(self, kind: str, **attributes: str) -> int:
        return sum(1 for name, told in self.all if name == kind and attributes.items() <= told.items())

    def errors(self) -> list[str]:
        return [told["error"] for name, told in self.all if name == "store-error"]


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Opener = Callable[..., Awaitable[Stores]]


@pytest.fixture
async def open_at(clock: ManualClock, notices: Notices) -> AsyncIterator[Opener]:
    """Opens stores of any URL, and closes them after the test."""
    opened: list[Stores] = []

    async def open_one(url: str, **settings: Any) -> Stores:
        defaults: dict[str, Any] = {"clock": clock, "on_notice": notices, "timeout": ENOUGH, "memory_bytes": 0}
        stores = await open_store(url, **(defaults | settings))
        opened.append(stores)
        return stores

    yield open_one
    for stores in opened:
        await stores.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def again(kind: str, open_at: Opener, tmp_path: Path, shared_redis: RedisServer) -> Opener:
    """Opens the store of this kind; twice gives two proxies on one store."""
    namespace = uuid.uuid4().hex

    async def open_one(**settings: Any) -> Stores:
        memory = (64 << 20) if "memory" in kind else 0
        url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db", "redis": shared_redis.url}
        return await open_at(
            url[kind.rpartition("+")[2]], **({"memory_bytes": memory, "namespace": namespace} | settings)
        )

    return open_one


@pytest.fixture
async def stores(again: Opener) -> Stores:
    return await again()
