"""1,000 identical cold requests over four workers and two proxies on one Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop

from loadtest.fast.figures import Figure, Options, options, told
from loadtest.load import Client, question, request
from loadtest.stage import stage

REQUESTS = 1000


def measure(given: Options) -> list[Figure]:
    """How many of them the upstream sees; an upstream that takes a second."""
    name = f"upstream calls for {REQUESTS} identical cold requests"
    with stage() as on:
        redis = on.redis()
        if redis is None:
            return [Figure(name=name, value=None, most=1, note="redis-server is not installed")]
        null = on.null(latency=1.0)
        proxies = [on.proxy(null.url, workers=workers, core=None, store__url=redis) for workers in (4, 1, 1)]
        counts = []
        for number in range(given.rounds):
            before = null.count()
            uvloop.run(_ask([proxy.url for proxy in proxies], number))
            counts.append(null.count() - before)
        return [Figure(name=name, value=max(counts), most=1)]


async def _ask(urls: Sequence[str], number: int) -> None:
    loop = asyncio.get_running_loop()
    clients = []
    for at in range(REQUESTS):
        url = urls[at % len(urls)]
        host, port = url.removeprefix("http://").partition("/")[0].split(":")
        clients.append((url, (await loop.create_connection(Client, host, int(port)))[1]))
    await asyncio.gather(*(client.ask(request(url, question(10**9 + number))) for url, client in clients))
    for _, client in clients:
        client.close()


def main(argv: Sequence[str]) -> int:
    """The figures of coalescing."""
    return told("coalesce", measure(options(argv, "coalesce")))
