"""A mock backend and the real proxy before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_backend import MockBackend
from tests.support.proxy import Proxy

MakeProxy = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def mb() -> AsyncIterator[MockBackend]:
    """A backend that says something new each time."""
    async with MockBackend() as backend:
        yield backend


@pytest.fixture
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


@pytest.fixture
async def proxy(make_proxy: MakeProxy) -> Proxy:
    """A proxy on the memory store."""
    return await make_proxy()
