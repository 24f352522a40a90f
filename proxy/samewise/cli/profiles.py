"""`profiles`: sampling profiles, which change while requests run."""

from __future__ import annotations

import tomllib
from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import USAGE, Admin, Fail
from samewise.cli.files import read, read_object
from samewise.cli.options import admin, as_json

_reason = click.option("--reason", default="", help="Why; it is kept with the version.")


@click.group()
def profiles() -> None:
    """Sampling profiles: immutable, numbered versions of what fills the fields that requests leave out."""


@profiles.command("list")
@as_json
@admin
def list_profiles(proxy: Admin, *, as_json: bool) -> None:
    """All profiles, with the version that is active."""
    told = proxy.get("profiles")
    if as_json:
        show.as_json(told)
        return
    rows = [
        (row.get("name"), row.get("match"), row.get("active"), _canary(row), len(row.get("versions") or ()))
        for row in show.items(told)
    ]
    show.table(("profile", "models", "active", "canary", "versions"), rows, empty="there are no profiles")


@profiles.command("show")
@click.argument("name")
@as_json
@admin
def show_profile(proxy: Admin, *, name: str, as_json: bool) -> None:
    """All versions of a profile."""
    _shown(proxy.get("profiles", name), as_json)


@profiles.command("set")
@click.argument("name")
@click.argument("file")
@click.option("--match", default=None, help="Model names, as a glob; needed for a new profile.")
@_reason
@as_json
@admin
def set_profile(proxy: Admin, *, name: str, file: str, match: str | None, reason: str, as_json: bool) -> None:
    """A new version with the values in FILE (JSON or TOML; - for stdin), active at once."""
    asked: dict[str, Any] = {"values": _values(file), "reason": reason}
    if match is not None:
        asked["match"] = match
    _shown(proxy.put("profiles", name, body=asked), as_json)


@profiles.command()
@click.argument("name")
@click.argument("file")
@click.option("--percent", type=click.FloatRange(0, 100, min_open=True), required=True, help="Share of the requests.")
@_reason
@as_json
@admin
def canary(proxy: Admin, *, name: str, file: str, percent: float, reason: str, as_json: bool) -> None:
    """A new version for some of the requests."""
    asked = {"values": _values(file), "percent": percent, "reason": reason}
    _shown(proxy.post("profiles", name, "canary", body=asked), as_json)


@profiles.command()
@click.argument("name")
@_reason
@as_json
@admin
def promote(proxy: Admin, *, name: str, reason: str, as_json: bool) -> None:
    """The canary becomes the active version."""
    _shown(proxy.post("profiles", name, "promote", body={"reason": reason}), as_json)


@profiles.command()
@click.argument("name")
@_reason
@as_json
@admin
def rollback(proxy: Admin, *, name: str, reason: str, as_json: bool) -> None:
    """End the canary, or go back to the version before; its entries live again."""
    _shown(proxy.post("profiles", name, "rollback", body={"reason": reason}), as_json)


def _shown(told: Any, as_json: bool) -> None:
    if as_json or not isinstance(told, dict):
        show.as_json(told)
        return
    show.facts({"profile": told.get("name"), "models": told.get("match"), "active": told.get("active")})
    if told.get("canary"):
        show.facts({"canary": _canary(told)})
    rows = [
        (
            row.get("number", row.get("version")),
            row.get("values"),
            show.moment(row.get("at")),
            row.get("by"),
            row.get("reason"),
        )
        for row in told.get("versions") or ()
    ]
    show.table(("version", "values", "at", "by", "reason"), rows)


def _canary(row: dict[str, Any]) -> str:
    canary = row.get("canary")
    return f"{canary.get('version')} for {canary.get('percent')}%" if isinstance(canary, dict) else "-"


def _values(file: str) -> dict[str, Any]:
    if not file.endswith(".toml"):
        return read_object(file, 'sampling values, such as {"temperature": 0.7}, or TOML where its name ends in .toml')
    try:
        return tomllib.loads(read(file).decode("utf-8"))
    except ValueError as error:
        raise Fail(f"{file} should be TOML: {error}", USAGE) from None
