"""`environments` and `upstreams`."""

from __future__ import annotations

from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import Admin
from samewise.cli.options import admin, as_json


@click.group()
def environments() -> None:
    """What each upstream is, and which environment is active."""


@environments.command("list")
@as_json
@admin
def list_environments(proxy: Admin, *, as_json: bool) -> None:
    """All environments, with how each is known and who has it."""
    told = proxy.get("environments")
    if as_json:
        show.as_json(told)
        return
    rows = [
        (row.get("id"), row.get("active"), row.get("origin"), row.get("engine"), row.get("model"), _upstreams(row))
        for row in show.items(told)
    ]
    columns = ("environment", "active", "known by", "engine", "model", "upstreams")
    show.table(columns, rows, empty="no upstream has said what it is yet")
    for row in show.items(told):
        _details(row)


@environments.command()
@click.argument("identity", metavar="ID")
@click.option("--model", default="", help="For this model alone.")
@click.option("--reason", default="", help="Why; it is kept in the journal.")
@as_json
@admin
def activate(proxy: Admin, *, identity: str, model: str, reason: str, as_json: bool) -> None:
    """Answer from this environment from now on."""
    told = proxy.post("environments", identity, "activate", body={"model": model, "reason": reason})
    show.as_json(told) if as_json else click.echo(f"{identity} is active")


@click.group()
def upstreams() -> None:
    """The backends behind the proxy."""


@upstreams.command("list")
@as_json
@admin
def list_upstreams(proxy: Admin, *, as_json: bool) -> None:
    """All upstreams as they were last seen."""
    told = proxy.get("upstreams")
    if as_json:
        show.as_json(told)
        return
    rows = [
        (row.get("url"), _state(row), row.get("running"), row.get("environment"), ", ".join(row.get("models") or ()))
        for row in show.items(told)
    ]
    show.table(("upstream", "state", "running", "environment", "models"), rows, empty="there are no upstreams")


def _change(action: str, said: str, help_line: str) -> None:
    @upstreams.command(action, help=help_line)
    @click.argument("url", metavar="URL")
    @click.option("--reason", default="", help="Why; it is kept in the journal.")
    @as_json
    @admin
    def change(proxy: Admin, *, url: str, reason: str, as_json: bool) -> None:
        told = proxy.post("upstreams", action, body={"url": url, "reason": reason})
        show.as_json(told) if as_json else click.echo(f"{url} {said}")


_change("add", "takes requests", "One more upstream, or one that drains no more; URL is a base URL with its /v1.")
_change("drain", "drains: it gets nothing new", "Send an upstream nothing new; what runs on it goes on to its end.")
_change("remove", "is removed", "Forget an upstream when what runs on it has ended.")


def _details(row: dict[str, Any]) -> None:
    """How it differs from the active one; how its trial went; what can't be seen of one without the contract."""
    identity = row.get("id")
    if row.get("differs"):
        click.echo(f"{identity} differs from the active one in")
        for each in row["differs"]:
            click.echo(f"  {each.get('field')}: {show.cell(each.get('active'))} -> {show.cell(each.get('here'))}")
    for model, trial in (row.get("trials") or {}).items():
        why = (trial.get("summary") or {}).get("why")
        said = f": {show.cell(why)}" if why else ""
        click.echo(f"{identity} for {model or 'every model'}: acceptance {trial.get('state')}{said}")
    if row.get("origin") == "observed":
        probes = row.get("probes") or {}
        click.echo(f"{identity} is observed: seen {', '.join(row.get('seen') or ())}; probes {probes.get('state')}")
        click.echo(f"  can't be seen: {'; '.join(row.get('unseen') or ())}")


def _state(row: dict[str, Any]) -> str:
    if row.get("healthy"):
        return "draining" if row.get("draining") else "healthy"
    return f"down: {row['error']}" if row.get("error") else "down"


def _upstreams(row: dict[str, Any]) -> str:
    found = row.get("upstreams") or ()
    return ", ".join(str(item.get("url")) if isinstance(item, dict) else str(item) for item in found)
