"""A tenant's `cache_salt`: engines that know it never reuse one tenant's prefix KV for another."""

from __future__ import annotations

import hashlib
import hmac

MEMBER = "cache_salt"
ENGINES = frozenset({"vllm"})
"""Engines that take it (as their manifests name them)."""


def derive(secret: bytes, tenant: str) -> str:
    """32 hex digits that nobody guesses without the secret."""
    return hmac.new(secret, b"samewise cache_salt\n" + tenant.encode(), hashlib.sha256).hexdigest()[:32]


def add(body: bytes, salt: str) -> bytes:
    """The body with this salt as its last member; all else stays byte for byte. `body` is a JSON object with members,
    none of which is `cache_salt`."""
    return b'%s,"%s":"%s"}' % (body.rstrip()[:-1], MEMBER.encode(), salt.encode())
