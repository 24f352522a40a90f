"""`explain` and `diff`: what a request's key is made of, as the running proxy sees it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import NO, USAGE, Admin, Fail
from samewise.cli.options import admin, as_json
from samewise.core.difference import MISSING, Difference, differences

_GUESSES = {
    "messages": "chat",
    "prompt": "completions",
    "documents": "rerank",
    "text_1": "score",
    "input": "embeddings",
}

_endpoint = click.option(
    "--endpoint", default="", help="chat, completions, embeddings, ...; guessed from the body where it isn't said."
)

_tenant = click.option(
    "--tenant",
    default=None,
    help="Whose request it is; where nothing is said, the holder of an authorization --header.",
)


@click.command()
@click.argument("request_file", metavar="REQ.json")
@_endpoint
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A request header; may be repeated.")
@_tenant
@click.option("--full", is_flag=True, help="Show prompts in full.")
@as_json
@admin
def explain(
    proxy: Admin,
    *,
    request_file: str,
    endpoint: str,
    headers: tuple[str, ...],
    tenant: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Every part of the key of the request in REQ.json (- for stdin), why it is (not) cacheable, the nearest entry.

    And the blocks of its prompt's prefix, with the upstreams on which they are warm.

    Nothing is asked of an upstream. Exit code 0 where the request is cacheable, else 1.
    """
    more: dict[str, Any] = {"headers": _headers(headers), **({} if tenant is None else {"tenant": tenant})}
    told = _explain(proxy, _read(request_file), endpoint, full=full, **more)
    if as_json:
        show.as_json(told)
    else:
        shown = {name: told.get(name) for name in ("key", "cacheable", "reason", "family", "model", "snapshot")}
        show.facts({name: value for name, value in shown.items() if value is not None})
        for number, unit in enumerate(told.get("units") or [told]):
            if told.get("units"):
                click.echo(f"\nunit {number}: key {show.cell(unit.get('key'))}")
            rows = [(name, part.get("value"), part.get("from", "")) for name, part in unit.get("parts", {}).items()]
            show.table(("part", "value", "from"), rows)
            _show_prefix(unit.get("prefix"))
        _show_nearest(told.get("nearest"), told.get("key"))
    if not told.get("cacheable"):
        sys.exit(NO)


@click.command()
@click.argument("a", metavar="A.json")
@click.argument("b", metavar="B.json")
@_endpoint
@click.option("--full", is_flag=True, help="Show the differing values in full.")
@as_json
@admin
def diff(proxy: Admin, *, a: str, b: str, endpoint: str, full: bool, as_json: bool) -> None:
    """The parts in which the keys of two requests differ.

    Exit code 0 where they have the same key, else 1.
    """
    one, other = (_explain(proxy, _read(name), endpoint, full=True, nearest=False) for name in (a, b))
    same = one.get("key") is not None and _keys(one) == _keys(other)
    found = [] if same else _differences(one, other)
    if as_json:
        rows = [_plain(item, full) for item in found]
        show.as_json({"same": same, "a": one.get("key"), "b": other.get("key"), "differences": rows})
    elif same:
        click.echo(f"same key: {one['key']}")
    else:
        for item in found:
            click.echo(_line(item, full))
        for name, told in ((a, one), (b, other)):
            if told.get("key") is None:
                click.echo(f"{name} has no key: {show.cell(told.get('reason'))}")
    if not same:
        sys.exit(NO)


def _show_prefix(prefix: dict[str, Any] | None) -> None:
    if prefix is None:
        return
    size = f"{prefix.get('block_tokens')} tokens{' (assumed)' if prefix.get('assumed') else ''}"
    click.echo(f"\nprefix {prefix.get('digest')}: {prefix.get('blocks')} blocks of {size}")
    warm = prefix.get("warm")
    if warm is not None:
        rows = [(url, f"{blocks} of {prefix.get('blocks')}") for url, blocks in warm.items()]
        show.table(("upstream", "warm blocks"), rows, empty="no upstream may answer this")


def _show_nearest(nearest: dict[str, Any] | None, key: str | None) -> None:
    if nearest is None:
        click.echo("\nno entry of this tenant and family is like it")
    elif nearest.get("key") == key:
        click.echo("\nthere is an entry under this key")
    else:
        click.echo(f"\nthe nearest entry is {nearest.get('key')}, {100 * nearest.get('similarity', 0):.0f} % alike")
        found = nearest.get("differences") or []
        rows = [(each.get("path"), each.get("what"), each.get("a", "-"), each.get("b", "-")) for each in found]
        show.table(("differs in", "how", "here", "there"), rows, empty="it differs in nothing that an entry tells")


def _explain(proxy: Admin, text: str, endpoint: str, *, full: bool, nearest: bool = True, **more: Any) -> Any:
    """The body goes as it is spelled: the proxy reads it as it reads a request's."""
    body = json.loads(text)
    guess = next((family for member, family in _GUESSES.items() if member in body), "chat")
    asked = {"endpoint": endpoint or guess, "body": text, "full": full, "nearest": nearest, **more}
    return proxy.post("explain", body=asked)


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[Difference]:
    units = list(zip(one.get("units") or [one], other.get("units") or [other], strict=False))
    found = []
    for number, (left, right) in enumerate(units):
        for item in differences(_values(left), _values(right), ordered=False):
            path = item.path if len(units) == 1 else f"unit {number}: {item.path}"
            found.append(Difference(path=path, what=item.what, a=item.a, b=item.b))
    return found


def _values(unit: dict[str, Any]) -> dict[str, Any]:
    return {name: part.get("value") for name, part in unit.get("parts", {}).items()}


def _keys(told: dict[str, Any]) -> list[Any]:
    return [unit.get("key") for unit in told.get("units") or [told]]


def _line(item: Difference, full: bool) -> str:
    line = f"{item.path}: {item.what}"
    if item.what == "value" or full:
        sides = [show.cell(_side(value, full)) for value in (item.a, item.b)]
        line += f" ({sides[0]} against {sides[1]})"
    return show.cell(line)


def _plain(item: Difference, full: bool) -> dict[str, Any]:
    sides = {"a": item.a, "b": item.b}
    shown = {name: _side(value, full) for name, value in sides.items() if value is not MISSING}
    return {"path": item.path, "what": item.what, **shown}


def _side(value: Any, full: bool) -> Any:
    """Texts and what may hold them are shown only in full."""
    if value is MISSING:
        return "nothing"
    if full or value is None or isinstance(value, bool | int | float):
        return value
    return f"{len(value)} characters" if isinstance(value, str) else f"{len(value)} items"


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for header in given:
        name, separator, value = header.partition(":")
        if not separator:
            raise Fail(f"--header should be NAME:VALUE (it is {header!r})", USAGE)
        headers[name.strip()] = value.strip()
    return headers


def _read(name: str) -> str:
    """The text of a JSON object."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as error:
        raise Fail(f"{name} can't be read: {error.strerror}", USAGE) from None
    except ValueError as error:
        raise Fail(f"{name} should be JSON: {error}", USAGE) from None
    if not isinstance(body, dict):
        raise Fail(f"{name} should hold a JSON object: the body of a request", USAGE)
    return text
