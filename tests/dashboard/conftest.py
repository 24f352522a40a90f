"""A mock backend, the real proxy and a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.cases.conftest import make_proxy, mb, proxy
from tests.support.browser import Tab, browser, browsing

__all__ = ["make_proxy", "mb", "proxy"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Any]:
    async with browser() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def tab(chromium: Any) -> AsyncIterator[Tab]:
    async with browsing(chromium) as found:
        yield found
