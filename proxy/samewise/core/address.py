"""What an upstream's base URL may be: one rule for settings, operators and the journal."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

WANTED = 'should be a base URL, such as "http://127.0.0.1:8000/v1"'
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


def base_url(value: str) -> str:
    """The base URL in one spelling, without a slash at its end. Raises ValueError, which never repeats the value.

    `http` or `https`, a host that is a name or an address, a port from 1 to 65535 where there is one, and a path;
    no user, password, query or fragment.
    """
    text = value.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(WANTED) from None
    if parts.scheme not in ("http", "https") or port == 0 or not text.isprintable() or any(map(str.isspace, text)):
        raise ValueError(WANTED)
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{WANTED}, without a user or password (a key goes into api_key)")
    if "?" in text or "#" in text:
        raise ValueError(f"{WANTED}, without a query or fragment")
    if "\\" in text or not _is_host(parts):
        raise ValueError(WANTED)
    return text


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        if parts.netloc.startswith("["):
            ipaddress.IPv6Address(host)
            return True
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:
        return False
    return len(name) <= 253 and _NAME.fullmatch(name) is not None
