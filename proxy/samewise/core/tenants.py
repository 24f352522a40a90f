"""Whose request it is: nothing but the credential decides."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A client's key, known by the hex of its SHA-256. `models` are globs of what it may ask for."""

    tenant: str
    sha256: str
    models: tuple[str, ...] = ("*",)

    def allows(self, model: str) -> bool:
        """True where the key may ask for this model."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def bearer(values: Sequence[str]) -> str | None:
    """The token of a single `Authorization: Bearer` (RFC 6750); None for none, several or another scheme."""
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def find(token: str, keys: Sequence[Key]) -> Key | None:
    """The key that this token is; every key is compared, in constant time."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    found: Key | None = None
    for key in keys:
        if hmac.compare_digest(key.sha256.lower(), digest):
            found = key
    return found


def of_credential(credential: str) -> str:
    """The tenant of a credential that only the upstream can judge: its holders share entries with nobody else."""
    return "credential:" + hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()[:16]
