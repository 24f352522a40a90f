"""The `Cache-Status` response header (RFC 9211)."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Forward = Literal["bypass", "method", "uri-miss", "vary-miss", "miss", "request", "stale", "partial"]
"""Why a request went forward (RFC 9211, section 2.2): `request` is a client's no-cache, max-age and the like."""

_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*", re.ASCII)
_UNPRINTABLE = re.compile(r"[^ -~]")
_MAX_INTEGER = 10**15 - 1


class CacheStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the list. `fwd` None means a hit, or with `refused` a response that the cache itself made.

    `fwd_status` is worth saying where the upstream's status is not the response's, or is an error;
    `ttl` is the freshness that is left in seconds, negative where stale.
    """

    fwd: Forward | None = None
    fwd_status: int | None = None
    ttl: float | None = None
    stored: bool = False
    collapsed: bool = False
    key: str | None = None
    detail: str | None = None
    refused: bool = False


def render(status: CacheStatus, *, cache: str = "samewise", received: str = "") -> str:
    """The header's value; `received` is what an upstream cache said, and comes first (RFC 9211, section 2)."""
    parts = [_item(cache)]
    if status.fwd is None:
        parts += [] if status.refused else ["hit"]
    else:
        parts.append(f"fwd={status.fwd}")
        if status.fwd_status is not None:
            parts.append(f"fwd-status={status.fwd_status}")
    if status.ttl is not None:
        parts.append(f"ttl={_integer(status.ttl)}")
    if status.fwd is not None and status.stored:
        parts.append("stored")
    if status.fwd is not None and status.collapsed:
        parts.append("collapsed")
    if status.key is not None:
        parts.append(f"key={_string(status.key)}")
    if status.detail is not None:
        parts.append(f"detail={_item(status.detail)}")
    value = "; ".join(parts)
    return f"{received}, {value}" if received else value


def _integer(value: float) -> int:
    return max(-_MAX_INTEGER, min(int(value // 1), _MAX_INTEGER))


def _item(text: str) -> str:
    return text if _TOKEN.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    clean = _UNPRINTABLE.sub("?", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{clean}"'
