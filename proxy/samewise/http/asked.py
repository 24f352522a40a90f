"""What bodies of the admin API say: objects of known members, each of them once. What isn't understood is never done.

Everything here raises ProxyError 400 that names the member.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from samewise.core.body import parse
from samewise.core.errors import ProxyError


async def read(request: web.Request, *known: str) -> dict[str, Any]:
    """The members of the body, of which an empty one has none."""
    for name in request.query:
        raise wrong(f"{_shown(name)} is no parameter of the URL here; {_instead(known)}", name, "unknown_parameter")
    try:
        raw = await request.read()
    except RequestPayloadError:
        message = "the body is not what its Content-Encoding or Transfer-Encoding says"
        raise ProxyError(400, message, code="bad_body") from None
    if not raw:
        return {}
    asked = parse(raw)
    for name in asked:
        if name not in known:
            raise wrong(f"{_shown(name)} is not known here, so nothing was done; {_instead(known)}", name)
    return asked


async def decision(request: web.Request, *known: str) -> dict[str, Any]:
    """As `read`, for what goes into the journal: all of it can be kept."""
    asked = await read(request, *known)
    for name, value in asked.items():
        try:
            msgspec.msgpack.encode(value)
        except (ValueError, OverflowError):
            raise wrong(f"{name} holds a number or a text that can't be kept", name, "invalid_value") from None
    return asked


def text(asked: dict[str, Any], name: str) -> str:
    """The text of that name, empty where there is none."""
    value = asked.get(name, "")
    if not isinstance(value, str) or not _is_unicode(value):
        raise wrong(f"{name} should be text", name, "invalid_value")
    return value


def flag(asked: dict[str, Any], name: str, default: bool) -> bool:
    """True or false."""
    value = asked.get(name, default)
    if not isinstance(value, bool):
        raise wrong(f"{name} should be true or false", name, "invalid_value")
    return value


def headers(asked: dict[str, Any], name: str) -> dict[str, str]:
    """Header values by their names in lower case; none where it is null."""
    value = asked.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise wrong(f"{name} should be an object of texts", name, "invalid_value")
    lowered = {field.lower(): item for field, item in value.items()}
    if len(lowered) != len(value):
        raise wrong(f"{name} has a header twice", name, "duplicate_member")
    if not all(_is_unicode(part) for pair in lowered.items() for part in pair):
        raise wrong(f"{name} should be an object of texts", name, "invalid_value")
    return lowered


def wrong(message: str, name: str, code: str = "unknown_member") -> ProxyError:
    """400 about one member."""
    return ProxyError(400, message, code=code, param=_plain(name))


def _instead(known: tuple[str, ...]) -> str:
    return f"known in the body: {', '.join(known)}" if known else "nothing is, the body should be empty"


def _shown(name: str) -> str:
    return repr(_plain(name))


def _plain(name: str) -> str:
    return name[:80].encode("utf-8", "replace").decode()


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
