"""Hits of one worker from memory, beside nginx, a bare aiohttp handler and LiteLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.fast.figures import Figure, Options, compared, in_turns, options, rate, ratio, told
from loadtest.load import Measured, same
from loadtest.stage import Server, stage


def measure(given: Options) -> list[Figure]:
    """Byte-identical requests, and requests that each have a trace of their own; all features on."""
    with stage() as on:
        null = on.null()

        def load(seconds: float = given.seconds, *, traced: bool = False) -> Callable[[Server], Measured]:
            return lambda server: same(server.url, seconds, traced=traced)

        proxy, nginx, bare = on.proxy(null.url), on.nginx(null.url), on.bare()
        servers = {"same": (proxy, load()), "traced": (proxy, load(traced=True)), "bare": (bare, load())}
        if nginx is not None:
            servers["nginx"] = (nginx, load())
        turns = in_turns(given.rounds, servers)
        hits = rate(turns["same"])
        figures = [
            Figure(name="hits/s, byte-identical requests", value=hits, unit="/s"),
            Figure(name="hits/s, a new traceparent in each", value=rate(turns["traced"]), unit="/s"),
            Figure(name="bare aiohttp handler that hashes the body", value=rate(turns["bare"]), unit="/s"),
        ]
        if nginx is not None:
            figures.append(Figure(name="nginx proxy_cache", value=rate(turns["nginx"]), unit="/s"))
            figures += compared("hits against nginx", turns["same"], turns["nginx"], 1.0)
        else:
            figures.append(Figure(name="hits against nginx", value=None, least=1.0, note="nginx is not installed"))
        figures += compared("hits with new traces against bare aiohttp", turns["traced"], turns["bare"], 0.75)
        half = [
            same(proxy.url, given.seconds, connections=max(1, round(hits / 2 * 0.002)), delay=2).p99 * 1e3
            for _ in range(given.rounds)
        ]
        figures.append(Figure(name="p99 at half that load", value=sorted(half)[len(half) // 2], unit="ms", most=3))
        litellm = on.litellm(null.url)  # started last: it works on long after it was asked, on the core of the others
        name = "hits against LiteLLM's local cache"
        if litellm is None:
            figures.append(Figure(name=name, value=None, least=300, note="LiteLLM is not installed"))
        else:
            turns = in_turns(given.rounds, {"same": (proxy, load()), "litellm": (litellm, load())})
            figures.append(Figure(name=name, value=ratio(turns["same"], turns["litellm"]), unit="x", least=300))
        return figures


def main(argv: Sequence[str]) -> int:
    """The figures of hits."""
    return told("hit", measure(options(argv, "hit")))
