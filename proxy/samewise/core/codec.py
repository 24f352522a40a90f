"""How an entry is written down, and what is refused when it is read back.

The wire form is `SW`, one byte of format version, one byte of flags, 32 bytes of SHA-256 over those
four bytes, the key and the rest; the rest is msgpack, compressed where that pays, then sealed where
a sealer is given. Bytes that were moved to another key, cut, edited or made by another version are
refused, with a word that says which. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from samewise.core.entry import FORMAT, Entry, EntryRefused

MAGIC = b"SW"
HEADER = 36
"""Bytes before the payload."""
COMPRESSED = 1
SEALED = 2
WORTHWHILE = 256
"""Bytes of payload below which compression is not tried."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Compressor(Protocol):
    """Lossless and bounded: `expand` raises ValueError for what isn't its own or would be too large."""

    def shrink(self, data: bytes) -> bytes: ...

    def expand(self, data: bytes) -> bytes: ...


class Sealer(Protocol):
    """Authenticated encryption bound to a context; `open` raises ValueError where anything differs."""

    def seal(self, data: bytes, context: bytes) -> bytes: ...

    def open(self, data: bytes, context: bytes) -> bytes: ...


def encode(entry: Entry, *, sealer: Sealer | None = None, compressor: Compressor | None = None) -> bytes:
    """The wire form of an entry."""
    payload = _encoder.encode(entry)
    flags = 0
    if compressor is not None and len(payload) >= WORTHWHILE:
        smaller = compressor.shrink(payload)
        if len(smaller) < len(payload):
            payload, flags = smaller, COMPRESSED
    if sealer is not None:
        flags |= SEALED
    head = MAGIC + bytes((FORMAT, flags))
    if sealer is not None:
        payload = sealer.seal(payload, head + entry.key.encode())
    return head + _checksum(head, entry.key, payload) + payload


def decode(key: str, data: bytes, *, sealer: Sealer | None = None, compressor: Compressor | None = None) -> Entry:
    """The entry that was encoded under exactly this key.

    Raises EntryRefused: `format` (not an entry), `version` (another release wrote it), `checksum`
    (edited, cut, or another key's), `sealed` (no secret, or none that opens it), `unsealed` (a secret
    is set, and this isn't sealed), `compressed` (can't be expanded, or beyond the bound), `content`
    (not the fields of an entry), `key` (it says itself that it belongs elsewhere).
    """
    head, payload = data[:4], data[HEADER:]
    if len(data) < HEADER or head[:2] != MAGIC:
        raise EntryRefused("format")
    version, flags = head[2], head[3]
    if version != FORMAT:
        raise EntryRefused("version")
    if flags & ~(COMPRESSED | SEALED):
        raise EntryRefused("format")
    if _checksum(head, key, payload) != data[4:HEADER]:
        raise EntryRefused("checksum")
    payload = _open(key, head, payload, flags, sealer)
    if flags & COMPRESSED:
        payload = _expand(payload, compressor)
    try:
        entry = _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise EntryRefused("content") from error
    if entry.key != key:
        raise EntryRefused("key")
    return entry


def _open(key: str, head: bytes, payload: bytes, flags: int, sealer: Sealer | None) -> bytes:
    if not flags & SEALED:
        if sealer is not None:
            raise EntryRefused("unsealed")
        return payload
    if sealer is None:
        raise EntryRefused("sealed")
    try:
        return sealer.open(payload, head + key.encode())
    except ValueError as error:
        raise EntryRefused("sealed") from error


def _expand(payload: bytes, compressor: Compressor | None) -> bytes:
    if compressor is None:
        raise EntryRefused("compressed")
    try:
        return compressor.expand(payload)
    except ValueError as error:
        raise EntryRefused("compressed") from error


def _checksum(head: bytes, key: str, payload: bytes) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(head + len(name).to_bytes(4, "big") + name)
    digest.update(payload)
    return digest.digest()
