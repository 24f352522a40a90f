"""A profile changes from temperature 0.7 to 1.2 at the twentieth token: what becomes of the answers in flight?

`python -m loadtest drift [--vllm] [--requests N] [--pairs N] [--json FILE] [--page FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    """Run it, print the table; exit code 1 where an answer drifted through Samewise."""
    parser = argparse.ArgumentParser(prog="python -m loadtest drift", description=__doc__)
    parser.add_argument("--requests", type=int, default=16, help="in flight at once")
    parser.add_argument("--pairs", type=int, default=60, help="of throughput runs; 0 leaves the cost out")
    parser.add_argument("--vllm", action="store_true", help="a real vLLM too (scripts/vllm-venv.sh)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--page", type=Path, help="renew the table between the marks of this page")
    given = parser.parse_args(argv)
    from loadtest.drift import report

    figures = asyncio.run(_run(given))
    sys.stdout.write(report.table(figures) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if given.page is not None:
        given.page.write_text(report.renewed(given.page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    return int(any(engine["samewise"]["changed"] for engine in figures["engines"]))


async def _run(given: argparse.Namespace) -> dict[str, Any]:
    from loadtest.drift import reference, vllm

    engines = [await reference.experiment(given.requests, given.pairs)]
    if given.vllm:
        engines.append(await vllm.experiment(given.requests))
    return {"engines": engines}
