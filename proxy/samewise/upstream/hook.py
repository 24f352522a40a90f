"""Tells somebody outside what happened: a POST to a URL, or a command that gets it on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

LIMIT = 30.0
"""Seconds that it may take."""


class HookFailed(Exception):
    """It was not taken; the message says why."""


class Hook:
    """`target`: a URL that begins with http:// or https://, else a command line, which no shell reads."""

    def __init__(self, target: str, *, limit: float = LIMIT) -> None:
        self._target = target
        self._limit = limit

    async def __call__(self, evidence: Mapping[str, Any]) -> None:
        """Once; a failure is not tried again. Raises HookFailed."""
        payload = msgspec.json.encode(evidence)
        try:
            async with asyncio.timeout(self._limit):
                if self._target.startswith(("http://", "https://")):
                    await self._post(payload)
                else:
                    await self._run(payload)
        except TimeoutError:
            raise HookFailed(f"it took more than {self._limit:g} s") from None

    async def _post(self, payload: bytes) -> None:
        try:
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    self._target, data=payload, headers={"content-type": "application/json"}, allow_redirects=False
                ) as response,
            ):
                if response.status >= 300:
                    raise HookFailed(f"it answered {response.status}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise HookFailed(f"it can't be reached ({type(error).__name__})") from error

    async def _run(self, payload: bytes) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self._target),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (OSError, ValueError) as error:
            raise HookFailed(f"the command can't be run ({error})") from error
        try:
            await process.communicate(payload)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        if process.returncode:
            raise HookFailed(f"the command ended with {process.returncode}")
