"""Conversations that several agents have with the same beginning: each turn is asked by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.fast.figures import Figure, Options, options, told
from loadtest.load import anew, question
from loadtest.stage import stage

CONVERSATIONS, TURNS, AGENTS = 50, 8, 4


def measure(given: Options) -> list[Figure]:
    """An upstream that takes 20 ms; one agent after the other, then how long a conversation took with and without."""
    turns = [(talk, turn) for talk in range(CONVERSATIONS) for turn in range(TURNS)]

    def body(at: int) -> dict[str, Any]:
        talk, turn = turns[at % len(turns)]
        roles = ["user", "assistant"] * turn + ["user"]
        said = [{"role": role, "content": f"{talk}.{step}"} for step, role in enumerate(roles)]
        return {**question(1), "messages": said}

    with stage() as on:
        null = on.null(latency=0.02)
        proxy = on.proxy(null.url)
        count = len(turns) * AGENTS
        cached = anew(proxy.url, 3600, body, count=count, connections=8)
        direct = anew(null.url, 3600, body, count=len(turns), connections=8)
    hits = cached.statuses.get("hit", 0) + cached.statuses.get("coalesced", 0)
    return [
        Figure(name="turns that cost no upstream call", value=hits / count, least=(AGENTS - 1) / AGENTS),
        Figure(name="turns/s against directly", value=cached.rate / direct.rate, unit="x", least=AGENTS * 0.6),
    ]


def main(argv: Sequence[str]) -> int:
    """The figures of conversations."""
    return told("conversation", measure(options(argv, "conversation")))
