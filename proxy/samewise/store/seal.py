"""AES-256-GCM for entries at rest: only who has the secret reads them, edits them or moves them.

Each secret becomes a master key (HKDF-SHA256, RFC 5869); each context (header and cache key) gets a
key of its own (HMAC-SHA256 of the context), so that random nonces of 96 bits have one entry's writes
to be unique among, not the whole cache's (NIST SP 800-38D, section 8.3). The context is the AAD too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE = 12
_NAME = 4


class AesSealer:
    """Seals with the first secret, opens with any: rotation is to put the new one in front.

    A sealed text is the 4-byte name of its secret, the nonce, then ciphertext and tag: 32 bytes more
    than the data.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets or not all(secrets):
            raise ValueError("a store secret must not be empty")
        derived = [_derive(secret.encode()) for secret in secrets]
        self._name, self._master = derived[0]
        self._masters = dict(reversed(derived))

    def seal(self, data: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return self._name + nonce + _cipher(self._master, context).encrypt(nonce, data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        """Raises ValueError where no secret fits, or where data or context differ in a single bit."""
        master = self._masters.get(data[:_NAME])
        if master is None:
            raise ValueError("sealed with a secret that isn't among ours")
        nonce = data[_NAME : _NAME + _NONCE]
        try:
            return _cipher(master, context).decrypt(nonce, data[_NAME + _NONCE :], context)
        except InvalidTag as error:
            raise ValueError("the seal is broken") from error


def _derive(secret: bytes) -> tuple[bytes, bytes]:
    okm = HKDF(algorithm=SHA256(), length=_NAME + 32, salt=None, info=b"samewise entry sealing 1").derive(secret)
    return okm[:_NAME], okm[_NAME:]


def _cipher(master: bytes, context: bytes) -> AESGCM:
    return AESGCM(hmac.digest(master, context, hashlib.sha256))
