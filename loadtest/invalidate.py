"""A store of many entries of ten models; one model is invalidated: how long the call takes, and what hits feel.

    python -m loadtest invalidate [--entries 1000000] [--seconds 3] [--store redis://127.0.0.1:6379/0]

The entries are in a SQLite file, or in a Redis that should be empty; the proxy then serves hits of other models, one
at a time, before, during and after the invalidation and the sweep that frees the memory of what ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from samewise.core.answer import Answer
from samewise.core.entry import Entry
from samewise.ports import StoreUnavailable
from samewise.store.codec import Codec
from samewise.store.factory import open_store
from samewise.store.sqlite import SqliteStore

MODELS = 10
_HOT = 50
_BATCH = 5_000
_TIMEOUT = 30
"""Seconds that the proxy waits for its store: a hit that comes late is a figure, one that is given up is none."""


class _Clock:
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


async def measure(entries: int, seconds: float = 3.0, store: str | None = None) -> dict[str, Any]:
    """Milliseconds of the call; medians and 99th percentiles of hits before, in the time after, and the sweep.

    `store` is the URL of a Redis; None for a file of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "entries.db"
        began = time.perf_counter()
        await (_fill(path, entries) if store is None else _fill_redis(store, entries))
        filled = time.perf_counter() - began
        backend, url = await _backend()
        process = await _proxy(Path(folder), store or f"sqlite:///{path}", url)
        try:
            return {"entries": entries, "filled_s": round(filled, 1), **await _run(process, entries, seconds)}
        finally:
            process.terminate()
            await process.wait()
            await backend.cleanup()


async def _fill(path: Path, entries: int) -> None:
    """The file is the store's own; its rows are written past its queue, which is made for answers, not for millions."""

    def ignore(kind: str, attributes: Any) -> None: ...

    codec, now = Codec(), time.time()
    store = SqliteStore(path, codec=codec, clock=_Clock(), on_notice=ignore)
    await store.ready()
    await store.close()
    await asyncio.to_thread(_write, path, codec, entries, now)


async def _fill_redis(url: str, entries: int) -> None:
    """Through the store's own door, which takes as many at a time as it is willing to hold."""
    opened = await open_store(url, memory_bytes=0, timeout=10.0, clock=_Clock())
    now, number = time.time(), 0
    try:
        while number < entries:
            try:
                await opened.store.put(_entry(number, now))
            except StoreUnavailable:
                await asyncio.sleep(0.01)
                continue
            number += 1
    finally:
        await opened.close()


def _write(path: Path, codec: Codec, entries: int, now: float) -> None:
    with sqlite3.connect(path) as connection:
        size = 0
        for start in range(0, entries, _BATCH):
            numbers = range(start, min(entries, start + _BATCH))
            made = [(number, _entry(number, now)) for number in numbers]
            values = [(number, entry.key, codec.encode(entry)) for number, entry in made]
            connection.executemany(
                "INSERT INTO entries(id, key, size, expires, used) VALUES (?, ?, ?, ?, ?)",
                [(number + 1, key, len(value), now + 86_400.0, now) for number, key, value in values],
            )
            connection.executemany("INSERT INTO bodies VALUES (?, ?)", [(at + 1, value) for at, _, value in values])
            size += sum(len(value) for _, _, value in values)
        connection.execute("UPDATE totals SET entries = ?, bytes = ?", (entries, size))


def _entry(number: int, now: float) -> Entry:
    body = b'{"choices":[{"message":{"content":"%d"}}]}' % number
    return Entry(
        key=f"{number:064x}",
        created=now,
        ttl=86_400.0,
        began=0,
        tenant="",
        family="chat",
        model=f"m-{number % MODELS}",
        environment="e" * 32,
        snapshot="default@1",
        request=b'{"messages":[{"role":"user","content":"%d"}]}' % number,
        answer=Answer(form="json", body=body),
    )


async def _backend() -> tuple[web.AppRunner, str]:
    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET" and request.path == "/samewise/environment":
            defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
            return web.json_response({"id": "e" * 32, "engine": "mock", "generation_defaults": defaults})
        if request.method == "GET":
            return web.json_response({"data": []})
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": {}}
        return web.json_response(body, headers={"x-samewise-environment": "e" * 32})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


async def _proxy(folder: Path, store: str, upstream: str) -> asyncio.subprocess.Process:
    config = folder / "samewise.toml"
    lines = ["[server]", "port = 0", "[admin]", "port = 0", "[verify]", "rate = 0", "[store]"]
    lines += [f'url = "{store}"', f'timeout = "{_TIMEOUT}s"', "[[upstreams]]", f'url = "{upstream}"']
    config.write_text("\n".join(lines))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "samewise.main", "serve", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _run(process: asyncio.subprocess.Process, entries: int, seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    told: list[str] = []
    while "ready on" not in (line := (await process.stdout.readline()).decode()):
        told.append(line)
        if not line:
            raise RuntimeError("the proxy did not start: " + "".join(told))
    swept = asyncio.create_task(_swept(process.stdout))
    data, admin = line.split("ready on ")[1].split(" (admin ")
    admin = admin.strip().rstrip(")")
    async with aiohttp.ClientSession() as session:
        bodies = [_question(number) for number in range(_HOT)]
        for body in bodies:
            await _ask(session, data, body)
        before = await _hits(session, data, bodies, seconds)
        began = time.perf_counter()
        wanted = {"scope": "model", "value": "m-0", "reason": "load test"}
        async with session.post(f"{admin}/samewise/v1/invalidate", json=wanted) as response:
            assert response.status == 200, await response.text()
        call = time.perf_counter() - began
        after = await _hits(session, data, bodies, seconds)
        sweep_began = time.perf_counter()
        freed = await asyncio.wait_for(swept, 120 + entries / 1000)
        return {
            "call_ms": round(call * 1000, 2),
            "before": _figures(before),
            "after": _figures(after),
            "freed": freed,
            "sweep_s": round(time.perf_counter() - sweep_began + seconds, 1),
        }


async def _swept(output: asyncio.StreamReader) -> str:
    async for line in output:
        if b"reclaimed" in line and b"tier=store" in line.replace(b'"tier": "', b"tier="):
            return line.decode().strip()
    return "the proxy ended"


def _question(number: int) -> bytes:
    content = f"hot {number}"
    body = {"model": f"m-{1 + number % (MODELS - 1)}", "messages": [{"role": "user", "content": content}]}
    return json.dumps({**body, "temperature": 0, "seed": 1}).encode()


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> str:
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
        await response.read()
        return response.headers.get("x-samewise-cache", "")


async def _hits(session: aiohttp.ClientSession, url: str, bodies: Sequence[bytes], seconds: float) -> list[float]:
    """Seconds of each hit."""
    until, found = time.perf_counter() + seconds, []
    number = 0
    while (began := time.perf_counter()) < until:
        outcome = await _ask(session, url, bodies[number % len(bodies)])
        found.append(time.perf_counter() - began)
        number += 1
        assert outcome == "HIT", outcome
    return found


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    milliseconds = sorted(each * 1000 for each in seconds)
    return {
        "hits": len(milliseconds),
        "p50_ms": round(statistics.median(milliseconds), 3),
        "p99_ms": round(milliseconds[int(len(milliseconds) * 0.99)], 3),
        "max_ms": round(milliseconds[-1], 3),
    }


def main(argv: Sequence[str]) -> int:
    """Print the figures as JSON; 1 where the call took longer than 100 ms."""
    parser = argparse.ArgumentParser(prog="loadtest invalidate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--store", help="a Redis to fill, in place of a file")
    given = parser.parse_args(argv)
    figures = asyncio.run(measure(given.entries, given.seconds, given.store))
    print(json.dumps(figures, indent=2))
    return 0 if figures["call_ms"] < 100 else 1
