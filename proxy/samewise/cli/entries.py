"""`invalidate` and `entry`."""

from __future__ import annotations

from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import USAGE, Admin, Fail
from samewise.cli.options import admin, as_json

_SCOPES = ("model", "environment", "tenant", "profile", "tag", "key")


def _scopes(function: Any) -> Any:
    for scope in reversed(_SCOPES):
        function = click.option(f"--{scope}", metavar=scope.upper(), help=f"Those of one {scope}.")(function)
    return function


@click.command()
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_scopes
@click.option("--dry-run", is_flag=True, help="Only count what would be forgotten.")
@click.option("--reason", default="", help="Why; it is kept in the journal.")
@as_json
@admin
def invalidate(
    proxy: Admin, *, everything: bool, dry_run: bool, reason: str, as_json: bool, **scopes: str | None
) -> None:
    """Forget answers; exactly one of --all, --model, --environment, --tenant, --profile, --tag, --key.

    With --tag, --tenant says whose; without it, it is everybody's.
    """
    whose = scopes.pop("tenant") or "" if scopes["tag"] is not None else ""
    chosen = [(scope, value) for scope, value in scopes.items() if value is not None]
    if len(chosen) + everything != 1:
        raise Fail(f"exactly one of --all, {', '.join(f'--{scope}' for scope in _SCOPES)} should be given", USAGE)
    scope, value = chosen[0] if chosen else ("all", "")
    asked = {
        "scope": scope,
        "value": value,
        "dry_run": dry_run,
        "reason": reason,
        **({"tenant": whose} if whose else {}),
    }
    told = proxy.post("invalidate", body=asked)
    if as_json:
        show.as_json(told)
        return
    what = scope if scope == "all" else f"{scope} {value}" + (f" of {whose}" if whose else "")
    matched, epoch = told.get("matched"), told.get("epoch")
    if dry_run:
        click.echo(f"{what}: {show.count(matched, 'entry', 'entries')} would be forgotten")
    else:
        facts = [
            show.count(matched, "entry", "entries") if matched is not None else "",
            f"epoch {epoch}" if epoch is not None else "",
        ]
        click.echo(f"{what}: invalidated {', '.join(fact for fact in facts if fact)}".rstrip())


@click.group()
def entry() -> None:
    """Show or delete one recorded answer."""


@entry.command("show")
@click.argument("key")
@click.option("--full", is_flag=True, help="What was asked and answered, too.")
@as_json
@admin
def show_entry(proxy: Admin, *, key: str, full: bool, as_json: bool) -> None:
    """The entry under KEY; exit code 1 where there is none."""
    told = proxy.get("entries", key, query="full" if full else "")
    if as_json or full:
        show.as_json(told)
        return
    show.facts({**told, **({"created": show.moment(told["created"])} if "created" in told else {})})


@entry.command("delete")
@click.argument("key")
@as_json
@admin
def delete_entry(proxy: Admin, *, key: str, as_json: bool) -> None:
    """Forget the entry under KEY; exit code 1 where there is none."""
    told = proxy.delete("entries", key)
    show.as_json(told) if as_json else click.echo(f"deleted {key}")
