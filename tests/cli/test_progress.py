"""A command that takes a while shows how far it is to who looks on, and to nobody else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0, Proxy

BARS = {"verify": "answers", "export": "exporting", "import": "importing"}


async def samewise(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout (a pipe) and stderr (a terminal)."""
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "samewise.main", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    shown = asyncio.create_task(asyncio.to_thread(_read, ours))
    assert process.stdout is not None
    out = await process.stdout.read()
    return await process.wait(), out.decode(), (await shown).decode()


def _read(terminal: int) -> bytes:
    """All that is written to it until nobody has it open any more."""
    got = bytearray()
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        try:
            while piece := stream.read(65536):
                got += piece
        except OSError:  # Linux says so by an error
            pass
    return bytes(got)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[dict[str, tuple[str, ...]]]:
    """What to type for each command."""
    async with MockBackend() as backend:
        backend.text = _steady
        async with Proxy(tmp_path / "proxy", backend.url) as proxy:
            for number in range(3):
                await proxy.post({**B0, "seed": number})
            file, admin = str(tmp_path / "entries"), ("--admin", proxy.admin_url)
            code, _, _ = await samewise(tmp_path, "export", file, *admin)
            assert code == 0
            yield {
                "verify": ("verify", "--url", backend.url, "--repeat", "2", "--concurrency", "2"),
                "export": ("export", f"{file}-again", *admin),
                "import": ("import", file, *admin),
            }


def _steady(body: dict[str, Any], number: int) -> str:
    return "the same"


async def test_on_a_terminal_there_is_a_bar_with_counts_and_not_where_programs_read(
    place: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    totals = {"verify": "56/56", "export": "3/?", "import": "3/3"}
    for command, words in place.items():
        code, out, shown = await samewise(tmp_path, *words)
        assert (code, BARS[command] in shown, totals[command] in shown) == (0, True, True), (command, shown)
        assert totals[command] not in out
        code, _, shown = await samewise(tmp_path, *words, "--json")
        assert (code, shown) == (0, ""), command
