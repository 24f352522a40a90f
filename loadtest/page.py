"""What a command says: printed, kept as JSON, and in pages of the documentation between two marks that name it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

END = "<!-- end -->"


def renewed(page: str, command: str, told: str) -> str:
    """The page with this text between its marks. Raises ValueError where it has none."""
    begin = f"<!-- {command} -->"
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no {begin} ... {END}")
    return f"{before}{begin}\n\n{told}\n\n{END}{after}"


def options(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--page`, which `publish` reads."""
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--page", type=Path, action="append", default=[], help="renew what stands between the marks of this page"
    )


def publish(given: argparse.Namespace, command: str, figures: Any, told: str) -> None:
    """Print what is told, and write it and the figures where the command line says. Raises ValueError as `renewed`."""
    sys.stdout.write(told + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for page in given.page:
        page.write_text(renewed(page.read_text(encoding="utf-8"), command, told), encoding="utf-8")
