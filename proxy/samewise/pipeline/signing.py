"""How receipts are signed: HMAC-SHA256 with a shared secret, or Ed25519 (RFC 8032), which others can check."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from samewise.core.receipts import Sign, Verify

ED25519 = "ed25519:"
_SEED = 64


class Signer(msgspec.Struct, frozen=True):
    """`public` is what others need to check it, empty where only the secret can."""

    sign: Sign
    verify: Verify
    kind: str
    public: str = ""


def signer(secret: str) -> Signer:
    """Of a setting: `ed25519:` and 64 hex digits is a private key, anything else the secret of an HMAC.

    Raises ValueError where the private key isn't one.
    """
    if secret.startswith(ED25519):
        return _ed25519(secret.removeprefix(ED25519))
    key = hashlib.sha256(b"samewise receipts\n" + secret.encode()).digest()

    def sign(data: bytes) -> str:
        return "hmac-sha256:" + hmac.new(key, data, hashlib.sha256).hexdigest()

    return Signer(sign, lambda data, signature: hmac.compare_digest(sign(data), signature), "hmac-sha256")


def _ed25519(seed: str) -> Signer:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if len(seed) != _SEED or any(digit not in "0123456789abcdefABCDEF" for digit in seed):
        raise ValueError(f"should be {ED25519} and 64 hex digits, or any text for an HMAC")
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
    public = private.public_key()

    def verify(data: bytes, signature: str) -> bool:
        kind, _, value = signature.partition(":")
        try:
            public.verify(bytes.fromhex(value), data)
        except (InvalidSignature, ValueError):
            return False
        return kind == "ed25519"

    return Signer(
        lambda data: "ed25519:" + private.sign(data).hex(), verify, "ed25519", public.public_bytes_raw().hex()
    )
