"""How the stores tell what went wrong: one callback, bounded words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

OnNotice = Callable[[str, Mapping[str, str]], None]
"""`on_notice(kind, attributes)`, from the thread of the event loop.

`store-error`: `tier`, `error` (a bounded word), where one helps `operation` (get, put, ...).
`store-eviction`: `tier`. `store-aside`: `tier`, `path`: a corrupt file was renamed to that.
`store-state`: `tier`, `state` (`up` or `down`), `error`.
"""


def ignore(kind: str, attributes: Mapping[str, str]) -> None:
    """For those who don't want to know."""
