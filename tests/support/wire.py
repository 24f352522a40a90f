"""HTTP on a bare socket, so that a test decides on every byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Heard:
    """One response as it stood on the wire; `body` without its framing."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value; None where there is none."""
        return next((value for given, value in self.headers if given == name.lower()), None)


class Wire:
    """One connection. Nothing is sent but what is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, address: tuple[str, int]) -> AsyncIterator[Wire]:
        """A connection for as long as the block lasts."""
        reader, writer = await asyncio.open_connection(*address, limit=1 << 24)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, data: bytes, *, piece: int | None = None) -> None:
        """All at once, or in pieces of that many bytes."""
        for at in range(0, len(data), piece or max(1, len(data))):
            self._writer.write(data[at : at + (piece or len(data))])
            await self._writer.drain()

    async def head(self, *, within: float = 5.0) -> bytes:
        """The head of the next response, where its body has no end."""
        async with asyncio.timeout(within):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self, *, within: float = 5.0) -> Heard:
        """The next response. Raises TimeoutError, or IncompleteReadError where the connection ends first."""
        async with asyncio.timeout(within):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = tuple(
                (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head[1:] if line)
            )
            status = int(head[0].split(" ")[1])
            fields = dict(headers)
            if "chunked" in fields.get("transfer-encoding", ""):
                return Heard(status, headers, await self._chunks())
            return Heard(status, headers, await self._reader.readexactly(int(fields.get("content-length", 0))))

    async def closed(self, *, within: float = 5.0) -> bool:
        """Whether the other side ends the connection without another byte."""
        try:
            async with asyncio.timeout(within):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        while await self._reader.readline() not in (b"\r\n", b""):
            pass
        return bytes(body)


def request(
    body: bytes, *headers: str, path: str = "/v1/chat/completions", method: str = "POST", length: bool = True
) -> bytes:
    """The bytes of a request; `headers` as lines; with its Content-Length unless told otherwise."""
    lines = [f"{method} {path} HTTP/1.1", "Host: proxy", "Content-Type: application/json", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(body: bytes, *, size: int = 1, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """The body in chunks of that many bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return framed + b"0\r\n" + trailer + b"\r\n"
