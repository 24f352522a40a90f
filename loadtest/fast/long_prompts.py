"""Short hits beside a stream of cold prompts of megabytes: how long they wait, keyed on the loop and beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from timeit import repeat
from typing import Any

from loadtest.fast.figures import Figure, Options, options, told
from loadtest.load import anew, question, same
from loadtest.stage import HERE, LOAD, Server, on_core, stage
from samewise.core import canonical, request

SIZE = 4 << 20
_ON_THE_LOOP = "from samewise.core import canonical; canonical.LARGE = 1 << 60\nfrom samewise.main import main; main()"


def measure(given: Options) -> list[Figure]:
    """One short question over and over, alone and while another process asks long ones, one after the other."""
    with stage() as on:
        null = on.null()
        servers = {"beside": on.proxy(null.url), "on": on.proxy(null.url, main=("-c", _ON_THE_LOOP))}
        p99: dict[str, list[float]] = {name: [] for name in ("alone", *servers)}
        for _ in range(given.rounds):
            p99["alone"].append(same(servers["beside"].url, given.seconds, connections=1).p99)
            for name, server in servers.items():
                p99[name].append(_disturbed(server, given.seconds))
    costs = _costs()
    alone, beside, on_loop = (median(p99[name]) * 1e3 for name in ("alone", "beside", "on"))
    return [
        *(Figure(name=f"{what}, for each MiB of text", value=cost, unit="ms") for what, cost in costs.items()),
        Figure(name="p99 of a short hit, alone", value=alone, unit="ms"),
        Figure(name="p99 of a short hit beside cold prompts of 4 MiB", value=beside, unit="ms"),
        Figure(name="the same, prompts keyed on the event loop", value=on_loop, unit="ms"),
        Figure(name="p99 keyed on the loop against beside it", value=on_loop / beside, unit="x", least=1.0),
    ]


def _disturbed(server: Server, seconds: float) -> float:
    command = [sys.executable, "-m", "loadtest.fast.long_prompts", server.url, str(seconds + 1)]
    feed = subprocess.Popen(on_core(LOAD, command), cwd=HERE.parent, stdout=subprocess.PIPE)
    assert feed.stdout is not None
    feed.stdout.readline()
    seen = same(server.url, seconds, connections=1).p99
    feed.wait()
    return seen


def _costs() -> dict[str, float]:
    """Milliseconds of processor time for each MiB of a prompt."""
    raw = json.dumps(_long(0)).encode()
    value = request.parse(raw)
    written = canonical.encode(value)
    steps: dict[str, Callable[[], object]] = {
        "reading": lambda: request.parse(raw),
        "writing in canonical form": lambda: canonical.encode_large(value),
        "hashing": lambda: canonical.sha256(written),
    }
    return {
        what: min(repeat(step, timer=time.thread_time, number=1)) * 1e3 * 2**20 / SIZE for what, step in steps.items()
    }


def _long(number: int) -> dict[str, Any]:
    return {
        **question(number),
        "messages": [{"role": "user", "content": f"{number}: " + "lorem ipsum " * (SIZE // 12)}],
    }


def main(argv: Sequence[str]) -> int:
    """The figures of long prompts."""
    return told("long", measure(options(argv, "long")))


if __name__ == "__main__":
    anew(sys.argv[1], 60, _long, count=1)
    print("begun", flush=True)
    anew(sys.argv[1], float(sys.argv[2]), lambda number: _long(number + 1))
