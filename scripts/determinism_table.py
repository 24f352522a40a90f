"""Prints the README's table of deterministic settings, made from the one that the backend starts with.

python scripts/determinism_table.py          the table
python scripts/determinism_table.py --write  the table, into README.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from samewise_backend.determinism import SETTINGS, Setting

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- deterministic settings: made by scripts/determinism_table.py -->", "<!-- end -->"
_DEVICES = {"any": "any", "cpu": "CPU", "cuda": "GPU"}


def table() -> str:
    """A Markdown table, one row a setting."""
    rows = ["| setting | on | why | what it costs |", "|---|---|---|---|"]
    rows += [f"| {_spelt(one)} | {_DEVICES[one.where]} | {one.why} | {one.cost} |" for one in SETTINGS]
    return "\n".join(rows)


def _spelt(setting: Setting) -> str:
    match setting.kind, setting.value:
        case _, None:
            return f"`{setting.name}`"
        case _, value if value is not None and value.startswith("("):
            return f"`{setting.name}` {value}"
        case "flag", value:
            return f"`{setting.name} {value}`"
        case "torch", value:
            return f"`torch.{setting.name}` = {value}"
        case _, value:
            return f"`{setting.name}={value}`"


def main() -> None:
    if "--write" not in sys.argv:
        print(table())
        return
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    README.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{table()}\n\n{END}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
