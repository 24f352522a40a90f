"""What a load needs in proxies, Redis memory and backends: a model, and how far off it is from what is measured.

`python -m loadtest cost [--requests N] [--json FILE] [--page FILE]`
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import redis
import zstandard

from loadtest import page
from loadtest.load import anew, question
from loadtest.null import answer
from loadtest.stage import Server, Stage, stage
from samewise.store.codec import LEVEL

OVERHEAD = 768
"""Bytes of an entry in Redis beside its compressed request and answer."""
REPEATED = 0.8
TURNS = 5
LATENCY = 0.1
COMMAND = "python -m loadtest cost"


@dataclass(frozen=True)
class Load:
    """What is asked: requests a second, the share that was asked before, and how long an entry is kept in seconds."""

    rate: float
    repeated: float
    ttl: float


@dataclass(frozen=True)
class Costs:
    """What one of them takes: seconds of a core for a hit and a miss, bytes of an entry, seconds of an answer."""

    hit: float
    miss: float
    entry: float
    answer: float


@dataclass(frozen=True)
class Needs:
    """Cores that are busy in proxies, bytes of Redis, answers that backends give at once."""

    cores: float
    memory: float
    at_once: float


def needs(load: Load, costs: Costs) -> Needs:
    """The model. Answers at once are Little's law: how many come a second, times how long each takes."""
    misses = load.rate * (1 - load.repeated)
    hits = load.rate * load.repeated
    return Needs(hits * costs.hit + misses * costs.miss, misses * load.ttl * costs.entry, misses * costs.answer)


def entry(request: bytes, answered: bytes) -> int:
    """Bytes of an entry in Redis, by the model."""
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(request + answered)) + OVERHEAD


def asked(number: int) -> dict[str, Any]:
    """A request of some 2 KB that hardly compresses below a half."""
    said = [{"role": "user", "content": random.Random(number).randbytes(1_000).hex()}]
    return {**question(number), "messages": said}


def fresh(first: int) -> Callable[[int], dict[str, Any]]:
    """Requests that nobody asked before, numbered from there."""
    return lambda at: asked(first + at)


def mix(repeated: float, seed: int) -> Callable[[int], dict[str, Any]]:
    """Requests of which that share is the same one again."""
    source = random.Random(seed)
    return lambda at: question() if source.random() < repeated else asked(1_000_000 * seed + at)


def seconds(proxy: Server, make: Callable[[int], dict[str, Any]], count: int) -> float:
    """Of processor time, for each of so many requests."""
    anew(proxy.url, 3600, lambda at: question(), count=1)
    before = proxy.cpu()
    seen = anew(proxy.url, 3600, make, count=count, connections=4)
    if seen.errors or seen.requests != count:
        raise RuntimeError(f"{seen.requests} of {count} were answered: {seen.statuses}")
    return (proxy.cpu() - before) / count


def processors(on: Stage, count: int) -> tuple[Costs, float]:
    """What a hit and a miss take, and what a mix takes, in seconds of a core for each request; medians of turns."""
    proxy = on.proxy(on.null().url)
    seconds(proxy, asked, count // 4)
    hits, misses, mixed = [], [], []
    for turn in range(TURNS):
        hits.append(seconds(proxy, lambda at: question(), 10 * count // TURNS))
        misses.append(seconds(proxy, fresh(10_000_000 * (1 + turn)), count // TURNS))
        mixed.append(seconds(proxy, mix(REPEATED, 100 + turn), 2 * count // TURNS))
    return Costs(hit=median(hits), miss=median(misses), entry=0.0, answer=LATENCY), median(mixed)


def memory(on: Stage, count: int) -> tuple[float, float]:
    """Bytes of an entry in Redis: by the model, and measured. Raises RuntimeError where there is no Redis."""
    url = on.redis()
    if url is None:
        raise RuntimeError("there is no redis-server")
    proxy = on.proxy(on.null().url, store__url=url, store__timeout="10s")
    link = redis.Redis.from_url(url)
    anew(proxy.url, 3600, fresh(200_000_000), count=50)
    _written(link, 50)
    before, kept = link.info("memory")["used_memory"], link.dbsize()
    anew(proxy.url, 3600, fresh(300_000_000), count=count)
    _written(link, kept + count)
    real = (link.info("memory")["used_memory"] - before) / (link.dbsize() - kept)
    bodies = (json.dumps(asked(300_000_000 + at)).encode() for at in range(min(count, 200)))
    return mean(entry(body, answer()) for body in bodies), real


def _written(link: redis.Redis, least: int) -> None:
    """Entries are written behind the answers."""
    waiting = threading.Event()
    for _ in range(600):
        if link.dbsize() >= least:
            return
        waiting.wait(0.1)
    raise RuntimeError(f"{link.dbsize()} of {least} entries were written")


def at_once(on: Stage, count: int) -> tuple[float, float]:
    """Answers under way at an upstream that takes `LATENCY`: by the model from their rate and what they took, delays of
    the machine included; and as the proxy counts them now and then."""
    proxy = on.proxy(on.null(latency=LATENCY).url)
    anew(proxy.url, 3600, lambda at: question(), count=1)
    counted: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            with urllib.request.urlopen(f"{proxy.admin}/samewise/v1/upstreams") as response:
                counted.append(json.load(response)["items"][0]["running"])

    watching = threading.Thread(target=watch)
    watching.start()
    seen = anew(proxy.url, 3600, mix(REPEATED, 8), count=count, connections=32)
    over.set()
    watching.join()
    missed = seen.statuses.get("miss", 0) / seen.requests
    took = [proxy.metric(f"samewise_request_duration_seconds_{name}", outcome="miss") for name in ("sum", "count")]
    costs = Costs(hit=0.0, miss=0.0, entry=0.0, answer=took[0] / took[1])
    return needs(Load(seen.rate, 1 - missed, 0.0), costs).at_once, mean(counted)


def measured(count: int) -> dict[str, Any]:
    """What one of each costs here, and what the model says beside what is measured."""
    with stage() as on:
        costs, mixed = processors(on, count)
        said = needs(Load(1.0, REPEATED, 0.0), costs).cores
        size, real = memory(on, count)
        running, found = at_once(on, 2 * count)
    costs = Costs(costs.hit, costs.miss, size, 2.0)
    return {
        "costs": asdict(costs),
        "checked": [
            {
                "name": f"processor time of a request, {REPEATED:.0%} repeated, ms",
                "model": said * 1e3,
                "is": mixed * 1e3,
            },
            {"name": "bytes of an entry in Redis", "model": size, "is": real},
            {"name": f"answers at once, of {LATENCY * 1e3:.0f} ms or more", "model": running, "is": found},
        ],
        "plans": [
            {**asdict(load), **asdict(needs(load, costs))}
            for load in (Load(100, 0.5, 86_400), Load(1_000, 0.8, 86_400), Load(10_000, 0.9, 3_600))
        ],
    }


def table(figures: dict[str, Any]) -> str:
    """The model beside what is measured, then what it says of some loads."""
    rows = ["| | the model says | measured | off by |", "|---|---|---|---|"]
    for each in figures["checked"]:
        off = each["model"] / each["is"] - 1
        rows.append(f"| {each['name']} | {each['model']:,.4g} | {each['is']:,.4g} | {off:+.0%} |")
    costs = figures["costs"]
    rows += [
        "",
        f"Here a hit takes {costs['hit'] * 1e6:,.0f} µs of a core and a miss {costs['miss'] * 1e6:,.0f} µs; "
        f"with these, entries of {costs['entry']:,.0f} bytes and answers of {costs['answer']:.0f} s:",
        "",
        "| requests a second | repeated | kept for | busy cores of proxies | Redis | answers at once |",
        "|---|---|---|---|---|---|",
    ]
    for plan in figures["plans"]:
        cells = [f"{plan['rate']:,.0f}", f"{plan['repeated']:.0%}", f"{plan['ttl'] / 3600:.0f} h"]
        cells += [f"{plan['cores']:.2g}", f"{plan['memory'] / 2**30:,.1f} GiB", f"{plan['at_once']:,.0f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Run it, print the tables; exit code 1 where the model is off by more than a quarter."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000, help="of each measurement")
    page.options(parser)
    given = parser.parse_args(argv)
    figures = measured(given.requests)
    page.publish(given, COMMAND, figures, table(figures))
    return int(any(abs(each["model"] / each["is"] - 1) > 0.25 for each in figures["checked"]))
