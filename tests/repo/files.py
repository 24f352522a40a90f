"""The repository's files, for the tests that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def load_yaml(name: str) -> Any:
    return yaml.safe_load(text(name))


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}$\n(.*)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    level = len(found[1])
    return re.split(rf"^#{{1,{level}}} ", found[2], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def first_cells(table: str) -> list[str]:
    """The first cell of every row that begins with code."""
    return re.findall(r"^\| (`[^|]*?) \|", table, re.MULTILINE)


def words(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)
