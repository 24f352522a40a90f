"""The codec as the stores use it: zstd where it pays, a seal where a secret is set."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zstandard

from samewise.core import codec
from samewise.core.entry import Entry
from samewise.store.seal import AesSealer

LEVEL = 3


class Zstd:
    """zstd without a dictionary; one pair of contexts a thread. `limit` bounds what comes out, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._local = threading.local()

    def shrink(self, data: bytes) -> bytes:
        try:
            compressor: zstandard.ZstdCompressor = self._local.compressor
        except AttributeError:
            compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
            self._local.compressor = compressor
        return compressor.compress(data)

    def expand(self, data: bytes) -> bytes:
        """Raises ValueError where it isn't one whole frame that says its size, within the bound."""
        try:
            decompressor: zstandard.ZstdDecompressor = self._local.decompressor
        except AttributeError:
            decompressor = self._local.decompressor = zstandard.ZstdDecompressor()
        try:
            size = zstandard.frame_content_size(data)
            if not 0 <= size <= self._limit:
                raise ValueError("a frame without a size, or beyond the bound")
            return decompressor.decompress(data, allow_extra_data=False)
        except (zstandard.ZstdError, MemoryError) as error:
            raise ValueError(str(error)) from error


class Codec:
    """Encodes and decodes under one set of secrets. Safe to use from several threads."""

    def __init__(self, *, secrets: Sequence[str] = (), limit: int = 256 << 20) -> None:
        self._sealer = AesSealer(secrets) if secrets else None
        self._compressor = Zstd(limit)

    @property
    def seals(self) -> bool:
        return self._sealer is not None

    def encode(self, entry: Entry) -> bytes:
        return codec.encode(entry, sealer=self._sealer, compressor=self._compressor)

    def decode(self, key: str, data: bytes) -> Entry:
        """Raises EntryRefused."""
        return codec.decode(key, data, sealer=self._sealer, compressor=self._compressor)

    def seal(self, data: bytes, context: bytes) -> bytes:
        """The bytes as they may be written down: sealed where there is a secret, else as they are."""
        return data if self._sealer is None else self._sealer.seal(data, context)

    def open(self, data: bytes, context: bytes) -> bytes:
        """The inverse of `seal`. Raises ValueError."""
        return data if self._sealer is None else self._sealer.open(data, context)
