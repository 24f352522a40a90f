"""`divergences`: recomputations that did not agree with what was served."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import click

from samewise.cli import show
from samewise.cli.client import NO, Admin
from samewise.cli.options import admin, as_json

_SIDES = ("cached", "recomputed")
_APART = frozenset({"candidates", "runs", "odd", "index", "part", "unit", *_SIDES})
_AROUND = 6
"""Tokens that are shown before the first difference."""
_SHOWN = 40


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
    columns = ("id", "verdict", "position", "gap", "layer", "model", "environment", "instance")
    rows = [[show.moment(row.get("at")), *(row.get(name) for name in columns)] for row in show.items(told)]
    show.table(("at", *columns), rows, empty="there are no divergences")


@divergences.command("show")
@click.argument("identity", metavar="ID")
@as_json
@admin
def show_divergence(proxy: Admin, *, identity: str, as_json: bool) -> None:
    """Both outputs token by token from the first difference on, and how close the two candidates there were."""
    told = proxy.get("divergences", identity)
    if as_json:
        show.as_json(told)
        return
    facts = {name: value for name, value in told.items() if name not in _APART and value not in (None, "")}
    show.facts({**facts, "at": show.moment(told.get("at"))})
    for url in told.get("odd") or ():
        click.echo(f"the other upstreams contradict {show.cell(url)}")
    rows = [
        (name, *((told.get(side) or {}).get(name) for side in _SIDES))
        for name in ("finish_reason", "concurrency", "cached_tokens", "instance", "digest")
    ]
    show.table(("", *_SIDES), rows)
    _differences(told)
    _candidates(told)


@divergences.command("verify")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@as_json
@admin
def verify_entries(proxy: Admin, *, keys: tuple[str, ...], as_json: bool) -> None:
    """Recompute these entries now; exit code 1 unless the backend still gives all of them."""
    told = proxy.post("verify", body={"keys": list(keys)})
    found = show.items(told)
    if as_json:
        show.as_json(told)
    else:
        columns = ("key", "verdict", "position", "gap", "layer", "instance", "why")
        show.table(columns, [[row.get(name) for name in columns] for row in found])
    if any(row.get("verdict") != "match" for row in found):
        raise SystemExit(NO)


def pieces(one: Sequence[str], other: Sequence[str], position: int) -> list[tuple[str, str, str]]:
    """Rows of a diff from shortly before the first difference: a mark, and what either side has there.

    The mark is a space where both are the same, else `-` (only the first), `+` (only the second) or `!`.
    """
    start = max(0, position - _AROUND)
    ours, theirs = one[start : position + _SHOWN], other[start : position + _SHOWN]
    marks = {"equal": " ", "replace": "!", "delete": "-", "insert": "+"}
    return [
        (marks[what], "".join(ours[a:b]), "".join(theirs[c:d]))
        for what, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    ]


def _differences(told: dict[str, Any]) -> None:
    cached, recomputed = (told.get(side) or {} for side in _SIDES)
    position = told.get("position")
    if not isinstance(position, int):
        return
    ours, theirs = _units(cached, told.get("unit")), _units(recomputed, told.get("unit"))
    if ours is None or theirs is None:
        click.echo("the outputs are kept as digests alone")
        return
    rows = [(mark, repr(one), repr(other)) for mark, one, other in pieces(ours, theirs, position)]
    show.table(("", *(f"{side}, {show.cell(told.get('unit'))} {position}" for side in _SIDES)), rows)


def _units(side: dict[str, Any], unit: Any) -> list[str] | None:
    """What `position` counts: tokens as text, or as ids where they have none; characters."""
    if unit == "token":
        ids = side.get("token_ids") or []
        words = side.get("tokens") or []
        if words and len(words) == len(ids) and not str(words[0]).startswith("token_id:"):
            return [str(word) for word in words]
        return [f"<{token}>" for token in ids] or None
    text = side.get("text")
    return list(text) if isinstance(text, str) else None


def _candidates(told: dict[str, Any]) -> None:
    found = told.get("candidates") or ()
    rows = [
        (
            side,
            repr(each.get("token")) if each.get("token") else None,
            each.get("token_id"),
            each.get("recorded_logprob"),
            each.get("recomputed_logprob"),
        )
        for side, each in zip(_SIDES, found, strict=False)
    ]
    if any(value is not None for row in rows for value in row[1:]):
        show.table(("candidate", "token", "id", "log-probability then", "log-probability now"), rows)
