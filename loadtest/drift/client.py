"""Streams several completions at once, and does something as soon as each of them has its twentieth token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from loadtest.drift.figures import Output

AT = 20
"""Tokens that each answer has when the update comes."""
COLD, WARM = 0.7, 1.2
PAUSE = 0.1
"""Seconds by which the engine's steps are longer until the update is made: who is busy comes in time, too."""
TOKENS = 128
_PROMPTS = (
    "The old clock",
    "My sister repairs",
    "Every student",
    "In the morning",
    "A small bird counts",
    "By the sea",
)


def questions(model: str, count: int, **members: Any) -> list[dict[str, Any]]:
    """Requests that differ in prompt and seed, and end after exactly `TOKENS` tokens."""
    same = {"model": model, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    return [{**same, "prompt": _PROMPTS[at % len(_PROMPTS)], "seed": 1000 + at, **members} for at in range(count)]


Pace = Callable[[float], Awaitable[object]]
"""Sets by how many seconds each step of the engine is longer from now on."""


async def run(
    base_url: str,
    bodies: Sequence[dict[str, Any]],
    update: Callable[[], Awaitable[object]] | None = None,
    pace: Pace | None = None,
) -> list[Output]:
    """The answers to all, asked at once. `update` is called once, while they run, at a `pace` that waits for it."""
    if pace is not None:
        await pace(PAUSE)
    limits = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:
        reached = [asyncio.Event() for _ in bodies]
        pairs = zip(bodies, reached, strict=True)
        answers = [asyncio.create_task(_answer(session, base_url, body, event)) for body, event in pairs]
        try:
            if update is not None:
                await _all(reached, answers)
                await update()
                if any(answer.done() for answer in answers):
                    raise RuntimeError("the update came after an answer had ended: ask for more tokens")
            if pace is not None:
                await pace(0.0)
            return list(await asyncio.gather(*answers))
        finally:
            for answer in answers:
                answer.cancel()


async def _all(reached: Sequence[asyncio.Event], answers: Sequence[asyncio.Task[Output]]) -> None:
    """Return when every answer has got there. Raises what ended one of them before."""
    waiting = asyncio.gather(*(event.wait() for event in reached))
    either: set[asyncio.Future[Any]] = {waiting, *answers}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        await asyncio.gather(*(answer for answer in answers if answer.done()))
        raise RuntimeError("an answer had ended before every other one had twenty tokens: ask for more tokens")


async def _answer(
    session: aiohttp.ClientSession, base_url: str, body: dict[str, Any], reached: asyncio.Event
) -> Output:
    tokens: list[int] = []
    logprobs: list[float] = []
    async with session.post(f"{base_url}/completions", json={**body, "stream": True}) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            data = line.strip().removeprefix(b"data: ")
            if not data or data == b"[DONE]":
                continue
            for choice in json.loads(data).get("choices", []):
                tokens += choice.get("token_ids") or []
                logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            if len(tokens) >= AT:
                reached.set()
    if len(tokens) != TOKENS or len(logprobs) != TOKENS:
        raise RuntimeError(f"an answer has {len(tokens)} tokens and {len(logprobs)} log-probabilities, not {TOKENS}")
    return Output(tuple(tokens), tuple(logprobs))
