"""A mock backend and the real proxy before it, once for all or for one test alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.mock_backend import MockBackend
from tests.support.proxy import Proxy

HERE = Path(__file__).parent
MakeProxy = Callable[..., Awaitable[Proxy]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these run in one loop, so that they can share servers that live in it."""
    one_loop = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(one_loop, append=False)


@dataclass(frozen=True)
class Pair:
    """A proxy and the backend behind it. Tests that share it ask what nobody else asks (`fresh`)."""

    proxy: Proxy
    mb: MockBackend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with MockBackend() as mb, Proxy(tmp_path_factory.mktemp("shared"), mb.url) as proxy:
        yield Pair(proxy, mb)


@pytest.fixture
def pair(_pair: Pair) -> Pair:
    """One that many tests share: the memory store, default settings, no verification."""
    _pair.mb.forget()
    return _pair


@pytest_asyncio.fixture(loop_scope="session")
async def mb() -> AsyncIterator[MockBackend]:
    """A backend of this test's own."""
    async with MockBackend() as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="session")
async def make_proxy(tmp_path: Path, mb: MockBackend) -> AsyncIterator[MakeProxy]:
    """Starts a proxy with these settings before `mb` (or other upstreams); all end with the test."""
    started: list[Proxy] = []

    async def make(*upstreams: str, settings: dict[str, Any] | None = None, **options: Any) -> Proxy:
        made = Proxy(tmp_path / f"proxy-{len(started)}", *(upstreams or (mb.url,)), settings=settings, **options)
        started.append(made)
        await made.start()
        return made

    yield make
    for each in started:
        await each.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def proxy(make_proxy: MakeProxy) -> Proxy:
    """A proxy of this test's own, on the memory store."""
    return await make_proxy()
