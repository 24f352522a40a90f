"""Settings as they may be shown: effective values, secrets masked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from samewise.settings.sections import SecretMark

MASK = "********"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY_SECRET = re.compile(r"(?i)\b(password|username|token|secret|key)=[^&]+")


def masked(settings: BaseModel) -> dict[str, Any]:
    """Nested plain values. A secret that is set is a mask; one that isn't set stays empty."""
    shown: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        secret = any(isinstance(mark, SecretMark) for mark in field.metadata)
        shown[name] = _hidden(value) if secret else _plain(value)
    shown.update({name: _plain(value) for name, value in (settings.model_extra or {}).items()})
    return shown


def flat(settings: BaseModel) -> dict[str, Any]:
    """The same under dotted names (`store.ttl`), for the start-up log."""
    return dict(_flatten("", masked(settings)))


def mask_text(text: str) -> str:
    """The text without the user, password or token of a URL in it."""
    return _QUERY_SECRET.sub(rf"\1={MASK}", _USERINFO.sub(MASK, text))


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return masked(value)
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case str():
            return mask_text(value)
        case _:
            return value


def _hidden(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [MASK for _ in value]
    return MASK if value else value


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else name, item)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flatten(f"{prefix}.{number}", item)
    else:
        yield prefix, value
