"""The same update as a new version of a sampling profile, through a real proxy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.drift.client import COLD, WARM, Pace, run
from loadtest.drift.figures import Output
from tests.support.proxy import Proxy


async def through_samewise(
    upstream: str, folder: Path, bodies: Sequence[dict[str, Any]], pace: Pace
) -> tuple[list[Output], list[Output]]:
    """Answers that ran while the profile changed, and answers to the same requests afterwards."""
    settings = {"sampling.profiles.default.match": "*", "sampling.profiles.default.temperature": COLD}
    async with Proxy(folder / "proxy", upstream, settings=settings) as proxy:
        base_url = f"{proxy.url}/v1"

        async def update() -> None:
            await proxy.admin("PUT", "/profiles/default", {"values": {"temperature": WARM}, "reason": "drift"})

        during = await run(base_url, bodies, update, pace)
        return during, await run(base_url, bodies)
