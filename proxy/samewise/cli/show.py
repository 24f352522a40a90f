"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

_LARGE = 1e5
"""From here on six digits would leave out what is before the point."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def as_json(value: Any) -> None:
    """Indented, in UTF-8."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "nothing") -> None:
    """Aligned columns; in a pipe they are as wide as they need to be."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell(item)) for item in row))
    if not grid.row_count:
        click.echo(empty)
        return
    console = Console()
    if not console.is_terminal:
        console.width = 1000
    console.print(grid)


def facts(values: Mapping[str, Any]) -> None:
    """One `name  value` a line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        click.echo(f"{name.ljust(width)}  {cell(value)}")


def cell(value: Any) -> str:
    """One line without control characters, and of what every terminal can write, whatever the server said."""
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case str():
            text = value
        case float():
            text = f"{value:.6g}" if abs(value) < _LARGE else f"{value:.15g}"
        case int():
            text = str(value)
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return text.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def count(number: Any, one: str, many: str) -> str:
    """`1 entry`, `2 entries`."""
    return f"{cell(number)} {one if number == 1 else many}"


def moment(seconds: Any) -> str:
    """Seconds since the epoch as UTC."""
    if not isinstance(seconds, int | float):
        return cell(seconds)
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return cell(seconds)


def items(answer: Any) -> list[dict[str, Any]]:
    """The rows of a listing: `{"items": [...]}`, a list, or an object by name."""
    found = answer.get("items", answer) if isinstance(answer, dict) else answer
    if isinstance(found, dict):
        return [
            {"name": name, **row} if isinstance(row, dict) else {"name": name, "value": row}
            for name, row in found.items()
        ]
    return [row for row in found or () if isinstance(row, dict)]
