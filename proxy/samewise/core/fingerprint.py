"""What a backend says it is (manifest), and the identity that follows from it (environment id)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from samewise.core import canonical

ID_LENGTH = 32
"""Hex digits of an id that our own backends make."""
MAX_ID = 128
"""Characters of an id that the proxy accepts from any backend."""

ENVIRONMENT_PATH = "/samewise/environment"
"""Where a backend that keeps the environment contract tells its manifest."""
CONTRACT = "contract"
"""The origin of an environment that the backend itself told."""

INFORMATIVE = frozenset({"id", "info"})
"""Members of a manifest that say nothing about what it answers."""


def environment_id(manifest: Mapping[str, Any]) -> str:
    """First 32 hex digits of the SHA-256 over the identity part; the order of its members is irrelevant."""
    identity = {name: value for name, value in manifest.items() if name not in INFORMATIVE}
    return canonical.sha256(canonical.encode_sorted(canonical.normalise(identity)))[:ID_LENGTH]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a backend, and as much of its manifest as decides how a request is understood.

    `origin` says how it is known: `contract` (the backend told), `observed` (the proxy looked) or
    `label` (an operator vouches). `defaults` are the backend's generation defaults, None where they
    can't be known. `engine` is lower case, `unknown` where it isn't said.
    """

    id: str
    origin: str
    engine: str = "unknown"
    model: str | None = None
    defaults: dict[str, Any] | None = None
    manifest: dict[str, Any] = {}


def from_manifest(manifest: Mapping[str, Any], origin: str = CONTRACT) -> Environment:
    """An environment as a manifest describes it. Raises ValueError where it has no usable id."""
    identity = manifest.get("id")
    if not isinstance(identity, str) or not 0 < len(identity) <= MAX_ID:
        raise ValueError(f"a manifest needs an id of 1 to {MAX_ID} characters")
    if not identity.isprintable() or not identity.isascii() or " " in identity:
        raise ValueError("an environment id is made of printable ASCII characters without spaces")
    defaults = manifest.get("generation_defaults")
    engine = manifest.get("engine")
    model = manifest.get("model")
    return Environment(
        id=identity,
        origin=origin,
        engine=engine.lower() if isinstance(engine, str) else "unknown",
        model=model if isinstance(model, str) else None,
        defaults=dict(defaults) if isinstance(defaults, Mapping) else None,
        manifest=dict(manifest),
    )
