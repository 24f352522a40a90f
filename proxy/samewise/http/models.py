"""The list of models, for a key that may not use all of them."""

from __future__ import annotations

from typing import Any

import msgspec

from samewise.core.tenants import Key

_SUFFIX = "/models"


def is_list(path: str) -> bool:
    """Whether the path is that of the list."""
    return path.rstrip("/").endswith(_SUFFIX)


def named(path: str) -> str | None:
    """The model of which the path tells; None where it is another path."""
    _, found, model = path.partition(f"{_SUFFIX}/")
    return model.strip("/") or None if found else None


def allowed(raw: bytes, key: Key) -> bytes:
    """The list as an upstream gave it, with what the key may use; empty where it can't be read."""
    try:
        told = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {"object": "list"}
    models = told.get("data")
    kept = [each for each in models if _is_for(each, key)] if isinstance(models, list) else []
    return msgspec.json.encode({**{name: told[name] for name in ("object",) if name in told}, "data": kept})


def _is_for(model: Any, key: Key) -> bool:
    name = model.get("id") if isinstance(model, dict) else None
    return isinstance(name, str) and key.allows(name)
