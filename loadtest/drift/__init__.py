"""A profile changes from temperature 0.7 to 1.2 at the twentieth token: what becomes of the answers in flight?

`python -m loadtest drift [--vllm] [--requests N] [--pairs N] [--json FILE] [--page FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from loadtest import page


def main(argv: list[str]) -> int:
    """Run it, print the table; exit code 1 where an answer drifted through Samewise."""
    parser = argparse.ArgumentParser(prog="python -m loadtest drift", description=__doc__)
    parser.add_argument("--requests", type=int, default=16, help="in flight at once")
    parser.add_argument("--pairs", type=int, default=60, help="of throughput runs; 0 leaves the cost out")
    parser.add_argument("--vllm", action="store_true", help="a real vLLM too (scripts/vllm-venv.sh)")
    page.options(parser)
    given = parser.parse_args(argv)
    from loadtest.drift import report

    figures = asyncio.run(_run(given))
    page.publish(given, report.COMMAND, figures, report.table(figures))
    return int(any(engine["samewise"]["changed"] for engine in figures["engines"]))


async def _run(given: argparse.Namespace) -> dict[str, Any]:
    from loadtest.drift import reference, vllm

    engines = [await reference.experiment(given.requests, given.pairs)]
    if given.vllm:
        engines.append(await vllm.experiment(given.requests))
    return {"engines": engines}
