"""`stats`, `tail` and `config`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import Admin
from samewise.cli.options import admin, as_json


@click.command()
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds.")
@as_json
@admin
def stats(proxy: Admin, *, watch: bool, interval: float, as_json: bool) -> None:
    """Hit rate, savings and health."""
    while True:
        told = proxy.get("status")
        if as_json:
            click.echo(json.dumps(told, ensure_ascii=False)) if watch else show.as_json(told)
        else:
            if watch:
                click.clear()
            show.facts(_flat(told))
        if not watch:
            return
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return


@click.command()
@click.option("--count", type=click.IntRange(1), default=None, help="End after so many.")
@as_json
@admin
def tail(proxy: Admin, *, count: int | None, as_json: bool) -> None:
    """Requests as they happen, with outcome and reason, until Ctrl-C."""
    seen = 0
    try:
        for event in proxy.events():
            click.echo(json.dumps(event, ensure_ascii=False) if as_json else _line(event))
            seen += 1
            if seen == count:
                return
    except KeyboardInterrupt:
        return


@click.command()
@as_json
@admin
def config(proxy: Admin, *, as_json: bool) -> None:
    """The settings in effect, secrets masked."""
    told = proxy.get("config")
    show.as_json(told) if as_json else show.facts(_flat(told))


def _line(event: Mapping[str, Any]) -> str:
    at = show.moment(event.get("at"))
    if event.get("event") != "request":
        told = {**(event.get("attributes") or {}), **(event.get("detail") or {})}
        facts = " ".join(f"{name}={show.cell(value)}" for name, value in told.items())
        return f"{at}  {'NOTICE':<9} {show.cell(event.get('kind'))} {facts}".rstrip()
    duration = event.get("duration")
    took = f"{duration * 1000:9.1f}ms" if isinstance(duration, int | float) else " " * 11
    names = ("endpoint", "model", "reason")
    words = [show.cell(event[name]) for name in names if event.get(name)]
    if event.get("prefix_cached"):
        words.append(f"prefix={show.cell(event['prefix_cached'])}")
    key = str(event.get("key") or "")[:12]
    outcome = show.cell(event.get("outcome")).upper()
    status = show.cell(event.get("status"))
    return f"{at}  {outcome:<9} {status} {took}  {key:<12}  {' '.join(words)}".rstrip()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= _flat(item, f"{prefix}.{name}" if prefix else str(name))
    return found
