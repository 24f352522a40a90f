"""What is key, delivery and uncacheable, family by family, as the README shows it.

`PYTHONPATH=proxy python -m tests.vllm.families` prints the table; `fields.json` is the list of vLLM's fields that
somebody has looked at, each in one class.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from samewise.core.families.registry import FAMILIES

FILE = Path(__file__).parent / "fields.json"
LOOKED_AT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
CLASSES = ("default-filled", "delivery", "uncacheable", "key")
MARKS = "<!-- tests/vllm/families.py -->", "<!-- end -->"
_KEYS_PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


def table() -> str:
    """A Markdown table, one row a family."""
    rows = [
        "| family | key, filled in where it is left out | key | delivery | makes it uncacheable |",
        "|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        classes = LOOKED_AT["families"][family.name]
        never = _never(family.name)
        cells = [
            _code([family.name]),
            _code(classes["default-filled"]),
            f"{_code(classes['key'])}, and every member that is in no column",
            _code(sorted(family.delivery)),
            "; ".join(filter(None, (_code(classes["uncacheable"], ""), never))),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _code(names: list[str], none: str = "nothing") -> str:
    return ", ".join(f"`{name}`" for name in names) or none


def _never(family: str) -> str:
    page = _KEYS_PAGE.read_text(encoding="utf-8").partition("## What can't be described")[2]
    row = re.search(rf"^\| [^|]*`{family}`[^|]*\| (.*?) \|$", page, re.MULTILINE)
    if row is None:
        raise LookupError(f"docs/keys.md doesn't say what {family} never caches")
    return row[1]


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
