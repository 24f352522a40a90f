"""`receipts`: what was answered, that the log is whole, and whether the backend still gives it."""

from __future__ import annotations

from pathlib import Path

import click

from samewise.cli import show
from samewise.cli.client import NO, Admin
from samewise.cli.files import read_object
from samewise.cli.options import admin, as_json


@click.group()
def receipts() -> None:
    """What was answered, proven later."""


@receipts.command("show")
@click.argument("identity", metavar="ID")
@as_json
@admin
def show_receipt(proxy: Admin, *, identity: str, as_json: bool) -> None:
    """What the receipt says; ID is the value of `x-samewise-receipt`."""
    told = proxy.get("receipts", identity)
    if as_json:
        show.as_json(told)
        return
    show.facts({**told, "at": show.moment(told.get("at"))})


@receipts.command("check")
@as_json
@admin
def check_receipts(proxy: Admin, *, as_json: bool) -> None:
    """Whether the log is whole: no line changed, left out, put in or moved. Exit code 1 where it isn't.

    Note the head that it prints somewhere else: a log whose end was cut off is whole, but has another one.
    """
    told = proxy.get("receipts", "check")
    if as_json:
        show.as_json(told)
    else:
        show.facts({name: value for name, value in told.items() if name != "broken"})
        broken = told.get("broken")
        if broken:
            click.echo(f"line {show.cell(broken.get('place'))}: {show.cell(broken.get('why'))}")
    if not told.get("whole"):
        raise SystemExit(NO)


@receipts.command("replay")
@click.argument("identity", metavar="ID")
@click.option("--request", "file", type=click.Path(path_type=Path), help="The request's body, where the entry is gone.")
@as_json
@admin
def replay_receipt(proxy: Admin, *, identity: str, file: Path | None, as_json: bool) -> None:
    """Ask the backend again; exit code 1 unless it gives the same answer."""
    asked = {} if file is None else {"request": read_object(str(file), "the body of a request")}
    told = proxy.post("receipts", identity, "replay", body=asked)
    if as_json:
        show.as_json(told)
    else:
        show.facts(told)
    if told.get("verdict") != "match":
        raise SystemExit(NO)
