"""`python -m loadtest NAME [ARGS]`: each scenario is a module with `main(argv) -> exit code`."""

from __future__ import annotations

import sys
from importlib import import_module

SCENARIOS = {
    "hit": "loadtest.fast.hit",
    "hit-redis": "loadtest.fast.hit_redis",
    "hit-sqlite": "loadtest.fast.hit_sqlite",
    "miss": "loadtest.fast.miss",
    "stream-miss": "loadtest.fast.stream_miss",
    "stream-hit": "loadtest.fast.stream_hit",
    "coalesce": "loadtest.fast.coalesce",
    "mixed": "loadtest.fast.mixed",
    "conversation": "loadtest.fast.conversation",
    "long": "loadtest.fast.long_prompts",
    "verifier": "loadtest.fast.verifier",
    "soak": "loadtest.fast.soak",
    "scale": "loadtest.fast.scale",
    "peers": "loadtest.fast.peers",
    "check": "loadtest.fast.check",
    "chaos": "loadtest.chaos",
    "consistency": "loadtest.consistency",
    "drift": "loadtest.drift",
    "invalidate": "loadtest.invalidate",
    "simulate": "loadtest.simulate",
    "conversations": "loadtest.conversations",
    "sessions": "loadtest.sessions",
    "cost": "loadtest.cost",
}
"""Names and modules, in the order in which they are listed."""


def main(argv: list[str]) -> int:
    """Run one scenario; without a name, list them."""
    if not argv or argv[0] not in SCENARIOS:
        for name, module in SCENARIOS.items():
            first = (import_module(module).__doc__ or "").partition("\n")[0]
            print(f"{name:14} {first}")
        return 2 if argv and argv[0] not in ("-h", "--help") else 0
    scenario = import_module(SCENARIOS[argv[0]])
    return int(scenario.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
