"""Where two JSON values differ, with paths that a person can follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


class Missing:
    """Stands where one side has nothing."""


MISSING = Missing()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One place. `what`: `character N` (texts, from 0), `order`, `number spelling`, `only in a`, `only in b`, `value`.

    A side that has nothing there is MISSING.
    """

    path: str
    what: str
    a: Any = MISSING
    b: Any = MISSING


def differences(a: Any, b: Any, path: str = "", *, ordered: bool = True) -> Iterator[Difference]:
    """Every place in which a and b differ, from the outside in. `ordered`: the order of members counts at the top."""
    match a, b:
        case dict(), dict():
            yield from _members(a, b, path, ordered)
        case list(), list():
            yield from _items(a, b, path)
        case str(), str() if a != b:
            yield Difference(path=path, what=f"character {first_difference(a, b)}", a=a, b=b)
        case _ if type(a) is type(b) and a == b:
            return
        case (int() | float(), int() | float()) if a == b and not isinstance(a, bool) and not isinstance(b, bool):
            yield Difference(path=path, what="number spelling", a=a, b=b)
        case _:
            yield Difference(path=path, what="value", a=a, b=b)


def first_difference(a: str, b: str) -> int:
    """The number of characters that two different texts begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def similarity(a: Any, b: Any) -> float:
    """From 0 (nothing alike) to 1 (equal): the share of characters of leaves that both have at the same path."""
    alike, total = _alike(a, b)
    return alike / total if total else 1.0


def join(path: str, name: str) -> str:
    """The path of a member: `a.b`, or `a["b c"]` where the name isn't plain."""
    if _NAME.fullmatch(name):
        return f"{path}.{name}" if path else name
    quoted = name.encode("unicode_escape").decode().replace('"', '\\"')
    return f'{path}["{quoted}"]'


def _members(a: Mapping[str, Any], b: Mapping[str, Any], path: str, ordered: bool) -> Iterator[Difference]:
    both = [name for name in a if name in b]
    if ordered and both != [name for name in b if name in a]:
        yield Difference(path=path, what="order", a=list(a), b=list(b))
    for name in a:
        if name in b:
            yield from differences(a[name], b[name], join(path, name))
        else:
            yield Difference(path=join(path, name), what="only in a", a=a[name])
    for name in b:
        if name not in a:
            yield Difference(path=join(path, name), what="only in b", b=b[name])


def _items(a: list[Any], b: list[Any], path: str) -> Iterator[Difference]:
    for index, left, right in zip(count(), a, b, strict=False):
        yield from differences(left, right, f"{path}[{index}]")
    shared = min(len(a), len(b))
    for index, item in enumerate(a[shared:], shared):
        yield Difference(path=f"{path}[{index}]", what="only in a", a=item)
    for index, item in enumerate(b[shared:], shared):
        yield Difference(path=f"{path}[{index}]", what="only in b", b=item)


def _alike(a: Any, b: Any) -> tuple[int, int]:
    match a, b:
        case dict(), dict():
            pairs = [(a.get(name, MISSING), b.get(name, MISSING)) for name in a.keys() | b.keys()]
        case list(), list():
            longest = range(max(len(a), len(b)))
            pairs = [(a[i] if i < len(a) else MISSING, b[i] if i < len(b) else MISSING) for i in longest]
        case str(), str():
            total = max(len(a), len(b), 1)
            return (total if a == b else first_difference(a, b)), total
        case _:
            total = max(_weight(a), _weight(b))
            return (total if type(a) is type(b) and a == b else 0), total
    counts = [_alike(left, right) for left, right in pairs]
    return sum(alike for alike, _ in counts), sum(total for _, total in counts)


def _weight(value: Any) -> int:
    match value:
        case Missing():
            return 0
        case str():
            return max(len(value), 1)
        case dict():
            return sum(_weight(item) for item in value.values()) or 1
        case list():
            return sum(_weight(item) for item in value) or 1
        case _:
            return 1
