"""`keys`: who may ask."""

from __future__ import annotations

import hashlib
import json
import secrets

import click

from samewise.cli import show
from samewise.cli.client import USAGE, Admin, Fail
from samewise.cli.options import admin, as_json
from samewise.core import tenants

_BYTES = 32


@click.group()
def keys() -> None:
    """Clients' API keys: list, new, revoke."""


@keys.command("list")
@as_json
@admin
def list_keys(proxy: Admin, *, as_json: bool) -> None:
    """All keys of the settings, by the beginning of their SHA-256."""
    told = proxy.get("keys")
    if as_json:
        show.as_json(told)
        return
    rows = [
        (
            row.get("sha256"),
            row.get("tenant"),
            "revoked" if row.get("revoked") else "valid",
            ", ".join(row.get("models") or ()),
            row.get("share"),
            row.get("per_minute") or "",
        )
        for row in show.items(told)
    ]
    columns = ("sha256", "tenant", "state", "models", "share", "per minute")
    show.table(columns, rows, empty="no keys: everybody may ask")


@keys.command()
@click.argument("tenant")
@as_json
def new(*, tenant: str, as_json: bool) -> None:
    """Make a key for TENANT, and the line for the settings; nothing is told to a proxy, nothing is kept."""
    try:
        tenants.tenant(tenant)
    except ValueError as rule:
        raise Fail(f"TENANT {rule} (it is {tenant!r})", USAGE) from None
    key = f"sk-{secrets.token_urlsafe(_BYTES)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    if as_json:
        show.as_json({"key": key, "tenant": tenant, "sha256": digest})
        return
    click.echo(f"the client's key, shown this once: {key}")
    click.echo(f"for [auth] keys or its file: {{ tenant = {_toml(tenant)}, sha256 = {_toml(digest)} }}")


@keys.command()
@click.argument("sha256", metavar="SHA256")
@as_json
@admin
def revoke(proxy: Admin, *, sha256: str, as_json: bool) -> None:
    """Take a key away at once, in every proxy on the store, and for good; 12 digits are enough."""
    told = proxy.delete("keys", sha256)
    show.as_json(told) if as_json else click.echo(f"{show.cell(told.get('revoked'))} is revoked")


def _toml(text: str) -> str:
    """Printable ASCII as the settings read it, which take `$$` for a dollar sign."""
    return json.dumps(text.replace("$", "$$"))
