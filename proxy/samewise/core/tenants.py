"""Whose request it is: nothing but the credential decides."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

SHARED, CREDENTIAL = "shared:", "credential:"
"""What tenants begin with that no setting names: a group's, and those that only an upstream can tell apart."""


_LABEL = re.compile(r"[!-~]{1,128}")


def label(value: str) -> str:
    """A word that fits into a header: an environment, a tenant. Raises ValueError that says what it should be."""
    if not _LABEL.fullmatch(value):
        raise ValueError("should be 1 to 128 printable ASCII characters without spaces")
    return value


def tenant(value: str) -> str:
    """A label that is none of those which the proxy makes itself. Raises ValueError that says what it should be."""
    if value.startswith((SHARED, CREDENTIAL)):
        raise ValueError(f'should not begin with "{SHARED}" or "{CREDENTIAL}"')
    return label(value)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A client's key, known by the hex of its SHA-256. `models` are globs of what it may ask for.

    Tenants with the same `share` share entries; `per_minute` requests are let in, 0 being no limit.
    """

    tenant: str
    sha256: str
    models: tuple[str, ...] = ("*",)
    share: str = ""
    per_minute: int = 0

    @property
    def space(self) -> str:
        """Whose entries its requests read and write: the tenant in their keys."""
        return f"{SHARED}{self.share}" if self.share else self.tenant

    @property
    def restricted(self) -> bool:
        """True where it may not ask for every model."""
        return "*" not in self.models

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
    return CREDENTIAL + hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()[:16]
