"""`doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import http.client
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from samewise.cli import show
from samewise.cli.client import NO, UNREACHABLE, Admin, Fail
from samewise.cli.options import admin, as_json

_PATIENCE = 3.0
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Settings file, where no proxy runs.")
@as_json
@admin
def doctor(proxy: Admin, *, config: Path | None, as_json: bool) -> None:
    """Ask the running proxy what is wrong; without one, look at the settings and what they name.

    Exit code 0 where nothing is an error.
    """
    try:
        found = show.items(proxy.get("doctor"))
        found.insert(0, _line("proxy", "ok", f"runs, admin port {proxy.url}"))
    except Fail as failure:
        if failure.exit_code != UNREACHABLE:
            raise
        do = "start it with `samewise serve`, or name it with --admin"
        found = [_line("proxy", "warning", f"none runs at {proxy.url}: only the settings are looked at", do)]
        found += _offline(config)
    if as_json:
        show.as_json({"items": found})
    else:
        for row in found:
            _print(row)
    sys.exit(NO if any(row.get("state") == "error" for row in found) else 0)


def _print(row: dict[str, Any]) -> None:
    state = str(row.get("state"))
    do = f"; {show.cell(row['do'])}" if row.get("do") else ""
    click.echo(
        f"{click.style(state.ljust(8), fg=_COLOURS.get(state))}{row.get('check')}: {show.cell(row['message'])}{do}"
    )


def _line(check: str, state: str, message: str, do: str = "") -> dict[str, Any]:
    return {"check": check, "state": state, "message": message, "do": do}


def _offline(config: Path | None) -> Iterator[dict[str, Any]]:
    import importlib.metadata

    import msgspec

    from samewise.core import diagnosis
    from samewise.settings import SettingsError, load, masked

    release = importlib.metadata.version("samewise")
    yield _line("versions", "ok", f"samewise {release}, Python {platform.python_version()}")
    try:
        settings = load(config)
    except SettingsError as error:
        yield _line("settings", "error", str(error), "change it; docs/settings.md has them all")
        return
    rows = [{"url": upstream.url, **_models(upstream.url, upstream.api_key)} for upstream in settings.upstreams]
    findings = [
        *diagnosis.settings(masked(settings)),
        *diagnosis.store(settings.store.url, _reached(settings.store.url)),
        *diagnosis.upstreams(rows),
    ]
    yield from (msgspec.to_builtins(finding) for finding in findings)


def _reached(url: str) -> dict[str, Any]:
    """Whether somebody listens where the store should be; more only the proxy can ask."""
    parts = urlsplit(url)
    if not parts.scheme.startswith("redis"):
        return {"available": True}
    host, _, port = parts.netloc.rpartition("@")[2].split(",")[0].rpartition(":")
    try:
        socket.create_connection((host or port, int(port) if host else 6379), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        return {"available": False, "error": getattr(error, "strerror", None) or str(error)}
    return {"available": True, "hidden": "it is asked only by a running proxy"}


def _models(url: str, api_key: str) -> dict[str, Any]:
    import json

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        connection.request("GET", f"{parts.path.rstrip('/')}/models", headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return {"healthy": False, "error": getattr(error, "strerror", None) or str(error)}
    try:
        models = [str(card["id"]) for card in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError):
        models = []
    return {"healthy": response.status < 500, "error": f"/models answers {response.status}", "models": models}
