"""Content codings (RFC 9110 section 8.4), taken off a body piece by piece as it comes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli  # type: ignore[import-untyped]
import zstandard

ACCEPT = "gzip, deflate, br, zstd"
"""What `decoder` understands, as an Accept-Encoding."""

_PIECE = 1 << 20
"""Bytes of output at most that one step makes, so that a small input can't fill the memory at once."""

_ZSTD_STEP = 256
"""Bytes of zstd taken in one step: four make 128 KiB at most (RFC 8878 section 3.1.1.2), so 8 MiB in all."""

_SAFE_ZSTD = (1, 6, 0)
"""Before it, a crafted body could show what else was in the memory of whoever took it off (CVE-2026-124851)."""


def of_strangers(zstd: tuple[int, ...] = zstandard.ZSTD_VERSION) -> frozenset[str]:
    """The codings that are taken off bodies of which anybody may be the author, with this version of libzstd."""
    return frozenset({"gzip", "x-gzip", "deflate", "br", *(["zstd"] if zstd >= _SAFE_ZSTD else [])})


class Undecodable(ValueError):
    """The body is not what its Content-Encoding says, ends early, or is in a coding that nobody here knows."""


class Decoder(Protocol):
    """Takes one coding off."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """All that can be decoded by now: what an upstream flushed comes out at once. Raises Undecodable."""

    def finish(self) -> None:
        """The body is over. Raises Undecodable where the coding is not."""


class _Zlib:
    """gzip (one or more members), and deflate with or without its zlib wrapper."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding == "gzip"
        self._inner: zlib._Decompress | None = zlib.decompressobj(16 + zlib.MAX_WBITS) if self._gzip else None
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not data:
            return
        if self._inner is None:
            wrapped = data[0] & 0x0F == 8
            self._inner = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        while data:
            if self._inner.eof:
                if not self._gzip:
                    return
                data = data.lstrip(b"\0")
                if not data:
                    return
                self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)
            self._begun = True
            try:
                out = self._inner.decompress(data, _PIECE)
            except zlib.error as error:
                raise Undecodable(f"broken {'gzip' if self._gzip else 'deflate'} body: {error}") from error
            if out:
                yield out
            data = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
        while not self._inner.eof:
            out = self._inner.decompress(b"", _PIECE)
            if not out:
                return
            yield out

    def finish(self) -> None:
        if self._begun and self._inner is not None and not self._inner.eof:
            raise Undecodable("the compressed body ended early")


class _Brotli:
    def __init__(self) -> None:
        self._inner = brotli.Decompressor()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not data:
            return
        self._begun = True
        try:
            out = self._inner.process(data, output_buffer_limit=_PIECE)
            while out:
                yield out
                out = b"" if self._inner.is_finished() else self._inner.process(b"", output_buffer_limit=_PIECE)
        except brotli.error as error:
            raise Undecodable(f"broken br body: {error}") from error

    def finish(self) -> None:
        if self._begun and not self._inner.is_finished():
            raise Undecodable("the compressed body ended early")


class _Zstd:
    """One or more frames."""

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _ZSTD_STEP):
            yield from self._step(data[at : at + _ZSTD_STEP])

    def _step(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inner.eof:
                self._inner = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            self._begun = True
            try:
                out = self._inner.decompress(data)
            except zstandard.ZstdError as error:
                raise Undecodable(f"broken zstd body: {error}") from error
            if out:
                yield out
            data = self._inner.unused_data if self._inner.eof else b""

    def finish(self) -> None:
        if self._begun and not self._inner.eof:
            raise Undecodable("the compressed body ended early")


class _Chain:
    """Several codings, the last applied first off."""

    def __init__(self, decoders: list[Decoder]) -> None:
        self._decoders = decoders

    def feed(self, data: bytes) -> Iterator[bytes]:
        return self._through(data, self._decoders)

    def _through(self, data: bytes, decoders: list[Decoder]) -> Iterator[bytes]:
        if not decoders:
            yield data
            return
        for piece in decoders[0].feed(data):
            yield from self._through(piece, decoders[1:])

    def finish(self) -> None:
        for decoder in self._decoders:
            decoder.finish()


def _one(coding: str) -> Decoder:
    match coding:
        case "gzip" | "x-gzip":
            return _Zlib("gzip")
        case "deflate":
            return _Zlib("deflate")
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()
        case _:
            raise Undecodable(f"the upstream answered in content coding {coding!r}, which was not asked for")


def decoder(content_encoding: str | None) -> Decoder | None:
    """What takes the codings of a Content-Encoding off; None where there is nothing to do. Raises Undecodable."""
    codings = [token.strip().lower() for token in (content_encoding or "").split(",")]
    wanted = [_one(coding) for coding in reversed(codings) if coding not in {"", "identity"}]
    if not wanted:
        return None
    return wanted[0] if len(wanted) == 1 else _Chain(wanted)
