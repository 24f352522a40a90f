"""Backends as simple as can be, before them proxies that choose by the product's own strategies."""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from loadtest.simulate.trace import CHARACTERS, Conversation
from samewise.core.route import prompt_prefix
from samewise.ports import Call
from samewise.upstream.affinity import by_name
from samewise.upstream.prefixes import blocks

BLOCK = 64
"""Tokens of a block of a backend's prefix cache."""
PREFILL = 3_000.0
"""Prompt tokens that a backend computes in a second, one prompt after the other."""
DECODE = 0.02
"""Seconds for a token of an answer, alone; with 32 others, twice that."""
STRATEGIES = ("round-robin", "least-loaded", "prefix", "oracle")
_WARM = 1 / 3
"""The share of requests after which it is counted."""


@dataclass(frozen=True)
class Fleet:
    """`blocks`: those that each backend keeps, the least recently used go first."""

    backends: int = 200
    proxies: int = 50
    blocks: int = 1_000


@dataclass(eq=False)
class Backend:
    """Computes prompts in turn and answers side by side. Times in seconds."""

    room: int
    kept: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free: float = 0.0
    running: int = 0

    def warm(self, chain: Sequence[int]) -> int:
        """Tokens of the prompt that are kept."""
        for at, link in enumerate(chain):
            if link not in self.kept:
                return at * BLOCK
        return len(chain) * BLOCK

    def first(self, now: float, cold: int) -> float:
        """Until the first token, with so many tokens to compute."""
        return max(0.0, self.free - now) + cold / PREFILL

    def takes(self, answer: int) -> float:
        """From the first token to the last of so many."""
        return answer * DECODE * (1 + self.running / 32)

    def take(self, now: float, chain: Sequence[int], cold: int) -> float:
        """As `first`; the prompt is computed and kept."""
        waits = self.first(now, cold)
        self.free = now + waits
        for link in reversed(chain):
            self.kept[link] = None
            self.kept.move_to_end(link)
        while len(self.kept) > self.room:
            self.kept.popitem(last=False)
        return waits


@dataclass(eq=False)
class View:
    """A backend as one proxy sees it: it counts only its own requests."""

    url: str
    running: int = 0
    since: float = float("-inf")
    block_tokens: int = BLOCK


class Now:
    """The simulation's time as the product's `Clock`."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """The same as `monotonic`."""
        return self.at

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.at


Choose = Callable[[int, Call, Sequence[int], int, int], int]
"""From a proxy, a call, the chain of its blocks, its tokens and those of the answer to the backend's number."""


@dataclass
class Outcome:
    """What came of a strategy. `peaks`: the busiest backend's requests by the mean, at each arrival."""

    strategy: str
    prompt: int = 0
    reused: int = 0
    first: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)


def simulate(asked: Sequence[Conversation], strategy: str, fleet: Fleet, seed: int) -> Outcome:
    """Every conversation to its end; each of its requests comes to a proxy by chance."""
    clock, source = Now(), random.Random(seed)
    backends = [Backend(fleet.blocks) for _ in range(fleet.backends)]
    views = [[View(f"http://b{at}/v1") for at in range(fleet.backends)] for _ in range(fleet.proxies)]
    choose = _oracle(backends, clock) if strategy == "oracle" else _real(strategy, views, clock)
    outcome = Outcome(strategy)
    counted = int(_WARM * sum(len(each.turns) for each in asked))
    heap: list[tuple[float, int, Callable[[], None]]] = []
    number = done = running = 0

    def later(at: float, what: Callable[[], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(heap, (at, number, what))

    def ask(talk: Conversation, turn: int) -> None:
        nonlocal done, running
        request, proxy = talk.request(turn), source.randrange(fleet.proxies)
        prefix = prompt_prefix(request)
        chain, tokens = blocks(prefix, BLOCK), len(prefix) // CHARACTERS
        call = Call(method="POST", path="/v1/chat/completions", model="m", route=lambda: prefix)
        answer = talk.turns[turn].answer
        at = choose(proxy, call, chain, tokens, answer)
        backend, view = backends[at], views[proxy][at]
        warm = min(backend.warm(chain), tokens - 1)
        waits = backend.take(clock.at, chain, tokens - warm)
        backend.running, view.running, running = backend.running + 1, view.running + 1, running + 1
        done += 1
        if done > counted:
            outcome.prompt, outcome.reused = outcome.prompt + tokens, outcome.reused + warm
            outcome.first.append(waits)
            outcome.peaks.append(max(one.running for one in backends) * fleet.backends / running)
        takes = backend.takes(answer)

        def end() -> None:
            nonlocal running
            backend.running, view.running, running = backend.running - 1, view.running - 1, running - 1
            if turn + 1 < len(talk.turns):
                later(clock.at + talk.turns[turn + 1].think, lambda: ask(talk, turn + 1))

        later(clock.at + waits + takes, end)

    def begin(talk: Conversation) -> Callable[[], None]:
        return lambda: ask(talk, 0)

    for talk in asked:
        later(talk.at, begin(talk))
    while heap:
        clock.at, _, what = heapq.heappop(heap)
        what()
    return outcome


def _real(strategy: str, views: Sequence[Sequence[View]], clock: Now) -> Choose:
    """Each proxy has a strategy of its own, made as the product makes it, and knows only what it did itself."""
    numbers = {view.url: at for at, view in enumerate(views[0])}
    strategies = [by_name(strategy, clock, "x-samewise-session") for _ in views]

    def choose(proxy: int, call: Call, chain: Sequence[int], tokens: int, answer: int) -> int:
        return numbers[strategies[proxy].choose(views[proxy], call).url]

    return choose


def _oracle(backends: Sequence[Backend], clock: Now) -> Choose:
    """Sees every backend's cache, queue and load, and the future answer's length: takes where that ends first."""

    def choose(proxy: int, call: Call, chain: Sequence[int], tokens: int, answer: int) -> int:
        def cost(at: int) -> float:
            one = backends[at]
            return one.first(clock.at, tokens - min(one.warm(chain), tokens - 1)) + one.takes(answer)

        return min(range(len(backends)), key=cost)

    return choose


def figures(outcome: Outcome) -> dict[str, float | str]:
    """As JSON. `imbalance` is the mean of the peaks."""
    first = sorted(outcome.first)
    return {
        "strategy": outcome.strategy,
        "requests": len(first),
        "reused": outcome.reused / outcome.prompt,
        "imbalance": mean(outcome.peaks),
        "median": first[len(first) // 2],
        "p99": first[len(first) * 99 // 100],
    }
