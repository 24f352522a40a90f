"""Two vLLMs, many conversations: prefix tokens reused and time to first token by strategy; then one of them is killed.

`python -m loadtest conversations [--conversations N] [--turns N] [--blocks N] [--at-once N] [--shared]
[--json FILE] [--page FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from loadtest import page
from samewise_backend import tiny_model
from tests.support.proxy import Proxy, until
from tests.support.vllm import VllmServer

SHAPE = tiny_model.Shape(hidden=512, intermediate=1376)
BLOCK_BYTES = 128 * SHAPE.layers * 2 * SHAPE.kv_heads * (SHAPE.hidden // SHAPE.heads) * 4
"""Keys and values of 128 tokens, vLLM's block on a CPU, in float32."""
SYSTEM, SAID, ANSWERED = 512, 100, 24
"""Tokens of the system prompt, of what the user says in a turn, and of an answer."""
COMMAND = "python -m loadtest conversations"
_NAMES = ("strategy", "requests", "prompt tokens", "reused", "share", "first token, median", "p90", "seconds")


_WORDS = ("the", "a", "cat", "river", "sister", "clock", "bridge", "letter", "watches", "builds", "counts", "remembers")


@dataclass
class Seen:
    """What the client saw of one run."""

    first: list[float] = field(default_factory=list)
    prompt: int = 0
    reused: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    again: int = 0


class Talks:
    """Conversations, each with a system prompt of its own, or all with the same; no other run has it."""

    def __init__(self, tokenizer: Any, run: str, count: int, *, shared: bool = False) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(f"{run} {count}")
        systems = [self._message("system", f"{run} {at}.", SYSTEM) for at in range(1 if shared else count)]
        self.messages = [[systems[at % len(systems)]] for at in range(count)]

    def _message(self, role: str, begin: str, tokens: int) -> dict[str, str]:
        text = begin + " " + " ".join(self._random.choices(_WORDS, k=2 * tokens))
        ids = self._tokenizer.encode(text).ids[:tokens]
        return {"role": role, "content": self._tokenizer.decode(ids)}

    def turn(self) -> list[int]:
        """Everybody says something; in which order they are heard."""
        for messages in self.messages:
            messages.append(self._message("user", f"turn {len(messages)}:", SAID))
        order = list(range(len(self.messages)))
        self._random.shuffle(order)
        return order

    def answered(self, number: int, text: str) -> None:
        """What the model said belongs to what is asked next."""
        self.messages[number].append({"role": "assistant", "content": text})


async def converse(
    proxy: Proxy, model: str, talks: Talks, turns: int, *, at_once: int, half: Callable[[], Awaitable[None]]
) -> Seen:
    """All turns of all conversations, so many at a time; `half` is awaited once, within the turn after the middle.

    A request that fails is counted, and asked twice more as OpenAI's client does. Raises RuntimeError where that fails.
    """
    seen, slots, done = Seen(), asyncio.Semaphore(at_once), 0
    middle = turns // 2 * len(talks.messages) + len(talks.messages) // 4

    async def one(number: int) -> None:
        nonlocal done
        async with slots:
            body = {"model": model, "messages": talks.messages[number], "temperature": 0, "max_tokens": ANSWERED}
            text = await patiently(proxy, body, seen)
            talks.answered(number, text)
            done += 1
            if done == middle:
                await half()

    for _ in range(turns):
        await asyncio.gather(*(one(number) for number in talks.turn()))
    return seen


async def patiently(proxy: Proxy, body: dict[str, Any], seen: Seen) -> str:
    """As `ask`, up to three times."""
    for again in range(3):
        try:
            text = await ask(proxy, body, seen)
        except (aiohttp.ClientError, RuntimeError, TimeoutError) as failure:
            seen.failed.append(str(failure) or type(failure).__name__)
            continue
        seen.again += again > 0
        return text
    raise RuntimeError(f"failed three times: {seen.failed[-1]}")


async def ask(proxy: Proxy, body: dict[str, Any], seen: Seen) -> str:
    """The text of a streamed answer. Raises RuntimeError where it is none, or not whole."""
    began = time.perf_counter()
    first, text, finished = 0.0, "", False
    usage: dict[str, Any] = {}
    options = {"ignore_eos": True, "seed": 7, "stream_options": {"include_usage": True}}
    async with proxy.stream(body | options) as stream:
        if stream.status != 200:
            raise RuntimeError(f"{stream.status} before the first byte")
        async for data in stream.data():
            if data == "[DONE]":
                break
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError("cut in the middle" if text else "an error before the first token")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finished = finished or choice["finish_reason"] is not None
                first = first or (time.perf_counter() if text else 0.0)
        seen.statuses[stream.headers.get("x-samewise-cache", "")] += 1
    if not finished:
        raise RuntimeError("cut in the middle")
    seen.first.append(first - began)
    seen.prompt += usage["prompt_tokens"]
    seen.reused += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return text


@contextlib.contextmanager
def two_servers(model: Path, blocks: int) -> Iterator[list[VllmServer]]:
    """Real ones, each with so many blocks of keys and values; they come up one after the other."""
    servers: list[VllmServer] = []
    try:
        room = ("--kv-cache-memory-bytes", str(blocks * BLOCK_BYTES))
        servers.append(VllmServer(model, engine_args=room))
        servers.append(VllmServer(model, engine_args=room))
        yield servers
    finally:
        for server in servers:
            server.close()


async def measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures of each strategy on the same two servers, then of the death of one."""
    model = tiny_model.write(folder / "model", SHAPE)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    with two_servers(model, given.blocks) as servers:
        urls = [server.base_url for server in servers]

        async def run(name: str, strategy: str, count: int, turns: int, kills: VllmServer | None = None) -> Seen:
            async with Proxy(folder / name, *urls, settings={"routing.strategy": strategy}) as proxy:

                async def half() -> None:
                    if kills is not None:
                        await kill_busy(proxy, kills)

                talks = Talks(tokenizer, name, count, shared=given.shared)
                return await converse(proxy, servers[0].name, talks, turns, at_once=given.at_once, half=half)

        await run("warm", "round-robin", 4, 1)
        rows = []
        for strategy in ("round-robin", "prefix"):
            began = time.monotonic()
            seen = await run(f"by-{strategy}", strategy, given.conversations, given.turns)
            rows.append(_row(strategy, seen, time.monotonic() - began))
        seen = await run("killed", "prefix", given.conversations, given.turns, servers[1])
    return {
        "conversations": given.conversations,
        "turns": given.turns,
        "blocks": given.blocks,
        "strategies": rows,
        "killed": {
            "requests": len(seen.first),
            "failed": dict(Counter(seen.failed)),
            "saved by asking again": seen.again,
        },
    }


async def kill_busy(proxy: Proxy, server: VllmServer) -> None:
    """As a machine that loses its power while it computes."""

    async def computes() -> bool:
        items = (await proxy.admin("GET", "/upstreams"))["items"]
        return any(item["running"] for item in items if item["url"] == server.base_url)

    await until(computes, 120.0, 0.01)
    os.killpg(server.pid, signal.SIGKILL)


def _row(strategy: str, seen: Seen, seconds: float) -> dict[str, Any]:
    first = sorted(seen.first)
    return {
        "strategy": strategy,
        "requests": len(first),
        "outcomes": dict(seen.statuses),
        "failed": seen.failed,
        "prompt": seen.prompt,
        "reused": seen.reused,
        "median": median(first),
        "p90": first[len(first) * 9 // 10],
        "seconds": seconds,
    }


def table(figures: dict[str, Any]) -> str:
    """One row a strategy, then what became of the requests when one server was killed."""
    rows = ["| " + " | ".join(_NAMES) + " |", "|---" * len(_NAMES) + "|"]
    for each in figures["strategies"]:
        share = each["reused"] / each["prompt"]
        cells = [f"`{each['strategy']}`", f"{each['requests']:,}", f"{each['prompt']:,}", f"{each['reused']:,}"]
        cells += [f"{share:.0%}", f"{each['median'] * 1e3:,.0f} ms", f"{each['p90'] * 1e3:,.0f} ms"]
        rows.append("| " + " | ".join([*cells, f"{each['seconds']:,.0f}"]) + " |")
    more, less = gains(figures)
    killed = figures["killed"]
    failed = ", ".join(f"{count} ({what})" for what, count in killed["failed"].items()) or "none"
    return "\n".join(
        [
            *rows,
            "",
            f"Tokens reused: {more:.2f} times as many; first token at the median {less:.0%} earlier. One server killed "
            f"in the middle of another run by `prefix`: {killed['requests']} of "
            f"{figures['conversations'] * figures['turns']} answered; failed at first: {failed}; "
            f"{killed['saved by asking again']} of these answered when asked again.",
        ]
    )


def gains(figures: dict[str, Any]) -> tuple[float, float]:
    """How many times the tokens are reused, and by which share the median of the first token is earlier."""
    plain, prefix = figures["strategies"]
    return prefix["reused"] / max(1, plain["reused"]), 1 - prefix["median"] / plain["median"]


def main(argv: Sequence[str]) -> int:
    """Run it, print the table; exit code 1 where less is gained than it should be, or a request is lost."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=160, help="of 128 tokens, in the cache of each server")
    parser.add_argument("--at-once", type=int, default=2, help="requests at a time")
    parser.add_argument("--shared", action="store_true", help="one system prompt for all conversations")
    page.options(parser)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="samewise-conversations-") as folder:
        figures = asyncio.run(measured(given, Path(folder)))
    page.publish(given, COMMAND, figures, table(figures))
    more, less = gains(figures)
    lost = figures["conversations"] * figures["turns"] - figures["killed"]["requests"]
    return int(more < 1.7 or less < 0.3 or lost > 0 or any(each["failed"] for each in figures["strategies"]))
