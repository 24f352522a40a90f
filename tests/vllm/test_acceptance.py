"""What the acceptance finds in a real vLLM, in two precisions, beside what a direct comparison finds."""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samewise_backend import tiny_model as tiny
from tests.support.vllm import FEWER_PROCESSES, VllmServer, require_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

WIDE = tiny.Shape(sharpness=2.5).wider(512)
"""Wide enough for bfloat16 to take other kernels in a batch than alone, with close calls."""
CROWD = 32
TEXTS = ("The old clock", "My sister repairs", "Every student counts", "In the morning", "A small bird", "Two numbers")
SEEDED: list[dict[str, Any]] = [
    {"prompt": text, "temperature": 0.7, "seed": seed, "max_tokens": 24, "ignore_eos": True}
    for text in TEXTS
    for seed in (1, 2, 3)
]


async def verify(url: str, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "samewise.main", "verify", "--json", "--url", url, *words),
        stdout=asyncio.subprocess.PIPE,
        cwd=folder,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out)


def tokens(server: VllmServer, body: dict[str, Any]) -> list[int]:
    """Asked past everything of ours."""
    found: list[int] = server.complete(**body)["choices"][0]["token_ids"]
    return found


def moved(server: VllmServer) -> int:
    """How many of the prompts are answered otherwise among others than alone."""
    alone = [tokens(server, body) for body in SEEDED]
    with ThreadPoolExecutor(CROWD) as pool:
        crowded = list(pool.map(lambda body: tokens(server, body), SEEDED * 2))
    return len({at % len(alone) for at, found in enumerate(crowded) if found != alone[at % len(alone)]})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_a_batch_moves_is_found_with_its_gaps_and_where_it_moves_nothing_all_agree(
    tmp_path: Path, dtype: str
) -> None:
    """In bfloat16 it hangs on the processor whether a batch moves anything; that it is found where it does, doesn't."""
    require_vllm()
    model = tiny.write(tmp_path / "wide", WIDE)
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(SEEDED))
    words = ("--prompts", str(file), "--repeat", "2", "--concurrency", f"1,{CROWD}")
    server = await asyncio.to_thread(VllmServer, model, options=("--dtype", dtype), environment=FEWER_PROCESSES)
    try:
        expected = await asyncio.to_thread(moved, server)
        code, report = await verify(server.base_url, tmp_path, *words)
        identity = server.manifest()["id"]
    finally:
        server.close()
    assert (report["answers"], report["failures"], report["notes"]) == (4 * len(SEEDED), 0, [])
    assert {row["environment"] for row in report["rows"]} == {identity}
    assert all(row["closest"] is not None for row in report["rows"])
    if dtype == "float32":
        assert expected == 0
    assert (code, report["agreed"], report["disagreed"] > 0) == ((1, False, True) if expected else (0, True, False))
    for each in report["disagreements"]:
        assert (each["unit"], each["concurrency"], each["cached_tokens"]) == ("token", CROWD, 0)
        assert len(each["tokens"]) == 2
    if expected:
        assert any(each["gap"] is not None for each in report["disagreements"])
