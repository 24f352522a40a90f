"""Client keys at the admin port: who has one, and taking one away."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Protocol

from aiohttp import web

from samewise.core.errors import ProxyError
from samewise.core.tenants import Key
from samewise.http import asked as bodies
from samewise.http.guard import by

PATH = "/samewise/v1/keys"
SHOWN = 12
"""Hex digits of a key's SHA-256 that are shown, and enough to name it."""
_DIGITS = re.compile(rf"[0-9a-f]{{{SHOWN},64}}")


class Ring(Protocol):
    """The keys of the settings, and which of them were revoked."""

    @property
    def configured(self) -> tuple[Key, ...]: ...

    def revoked(self, key: Key) -> bool: ...

    def knows(self, sha256: str) -> bool: ...


class Revoke(Protocol):
    """Take a key away for good, in every proxy on the store. Raises ProxyError 503."""

    def __call__(self, sha256: str, *, by: str) -> Awaitable[None]: ...


class KeyRoutes:
    """`GET /samewise/v1/keys`, and `DELETE /samewise/v1/keys/SHA256` (its first 12 digits are enough)."""

    def __init__(self, ring: Ring, revoke: Revoke) -> None:
        self._ring = ring
        self._revoke = revoke

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_route("GET", PATH, self._list)
        router.add_route("DELETE", f"{PATH}/{{sha256}}", self._delete)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [self._shown(key) for key in self._ring.configured]})

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        """One that neither the settings here nor the journal know is no key: it may be spelt wrong."""
        await bodies.read(request)
        given = request.match_info["sha256"].lower()
        if not _DIGITS.fullmatch(given):
            raise ProxyError(
                400,
                f"a key is named by at least {SHOWN} hex digits of its SHA-256",
                code="invalid_value",
                param="sha256",
            )
        digests = {key.sha256.lower() for key in self._ring.configured if key.sha256.lower().startswith(given)}
        if len(digests) > 1:
            raise ProxyError(404, f"{len(digests)} keys begin with {given}", code="unknown_key", param="sha256")
        if not digests and not self._ring.knows(given):
            raise ProxyError(
                404,
                f"no such key: {given}; ask a proxy that has it in its settings ('samewise keys list')",
                code="unknown_key",
                param="sha256",
            )
        await self._revoke(next(iter(digests), given), by=by(request))
        return web.json_response({"revoked": given[:SHOWN]})

    def _shown(self, key: Key) -> dict[str, object]:
        return {
            "tenant": key.tenant,
            "sha256": key.sha256[:SHOWN],
            "models": list(key.models),
            "share": key.share,
            "per_minute": key.per_minute,
            "revoked": self._ring.revoked(key),
        }
