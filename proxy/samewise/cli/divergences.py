"""`divergences`: recomputations that did not agree with what was served."""

from __future__ import annotations

import click

from samewise.cli import show
from samewise.cli.client import Admin
from samewise.cli.options import admin, as_json


@click.group()
def divergences() -> None:
    """Recomputations that did not agree with what was served."""


@divergences.command("list")
@click.option("--limit", type=click.IntRange(1, 10000), default=50, show_default=True)
@as_json
@admin
def list_divergences(proxy: Admin, *, limit: int, as_json: bool) -> None:
    """Newest first."""
    told = proxy.get("divergences", query=f"limit={limit}")
    if as_json:
        show.as_json(told)
        return
    columns = ("id", "verdict", "position", "model", "environment", "instance")
    rows = [[show.moment(row.get("at")), *(row.get(name) for name in columns)] for row in show.items(told)]
    show.table(("at", *columns), rows, empty="there are no divergences")


@divergences.command("show")
@click.argument("identity", metavar="ID")
@as_json
@admin
def show_divergence(proxy: Admin, *, identity: str, as_json: bool) -> None:
    """Both outputs, the position of the first difference, and the two candidates there."""
    told = proxy.get("divergences", identity)
    if as_json:
        show.as_json(told)
        return
    sides = ("cached", "recomputed")
    show.facts({name: value for name, value in told.items() if name not in (*sides, "candidates")})
    rows = [
        (name, *((told.get(side) or {}).get(name) for side in sides))
        for name in ("finish_reason", "concurrency", "cached_tokens", "text")
    ]
    show.table(("", *sides), rows)
    if told.get("candidates"):
        click.echo(f"candidates at {show.cell(told.get('position'))}: {show.cell(told['candidates'])}")
