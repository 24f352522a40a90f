"""A real Chromium, headless, with a fresh profile for each test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.patience import ENOUGH

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """Its path, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """A page, and all that it complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, told: Any) -> None:
        if told.type in ("error", "warning"):
            self.complaints.append(told.text)


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A browser with a profile of its own. Skips where there is no Chromium."""
    path = chromium()
    if path is None:
        pytest.skip("no chromium on PATH")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        pytest.skip("playwright is not installed here")
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
        yield found
        await found.close()


@asynccontextmanager
async def browsing(found: Any, **options: Any) -> AsyncIterator[Tab]:
    """A tab that shares nothing with others: no storage, no cache."""
    context = await found.new_context(viewport={"width": 1360, "height": 900}, **options)
    context.set_default_timeout(ENOUGH * 1000)
    yield Tab(await context.new_page())
    await context.close()
