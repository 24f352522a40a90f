"""HTTP on a bare socket, so that a test decides on every byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.support.patience import ENOUGH


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
    """One connection. Nothing is sent but what is given.

    What has come stays to be read, whatever becomes of the connection: a reset ends it as its end does.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._held = bytearray()

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, address: tuple[str, int]) -> AsyncIterator[Wire]:
        """A connection for as long as the block lasts."""
        with socket.socket() as link:
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(link, address)
            yield cls(link)

    async def send(self, data: bytes, *, piece: int | None = None) -> None:
        """All at once, or in pieces of that many bytes; no more once the other side takes none.

        A server may answer and close before it has read all (RFC 9112 section 9.6): what it said is there to read.
        """
        step = piece or max(1, len(data))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(0, len(data), step):
                await asyncio.get_running_loop().sock_sendall(self._link, data[at : at + step])

    async def head(self, *, within: float = ENOUGH) -> bytes:
        """The head of the next response, where its body has no end."""
        async with asyncio.timeout(within):
            return await self._until(b"\r\n\r\n")

    async def answer(self, *, within: float = ENOUGH) -> Heard:
        """The next response. Raises TimeoutError, or IncompleteReadError where the connection ends first."""
        async with asyncio.timeout(within):
            head = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = tuple(
                (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head[1:] if line)
            )
            status = int(head[0].split(" ")[1])
            fields = dict(headers)
            if "chunked" in fields.get("transfer-encoding", ""):
                return Heard(status, headers, await self._chunks())
            return Heard(status, headers, await self._exactly(int(fields.get("content-length", 0))))

    async def rest(self, *, within: float = ENOUGH) -> bytes:
        """All that comes until the other side ends the connection. Raises TimeoutError."""
        async with asyncio.timeout(within):
            while await self._more():
                pass
            return self._take(len(self._held))

    async def closed(self, *, within: float = ENOUGH) -> bool:
        """Whether the other side ends the connection without another byte."""
        try:
            return await self.rest(within=within) == b""
        except TimeoutError:
            return False

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
            body += await self._exactly(size)
            await self._until(b"\r\n")
        while await self._until(b"\r\n") != b"\r\n":
            pass
        return bytes(body)

    async def _until(self, mark: bytes) -> bytes:
        """As much as ends with the mark."""
        looked = 0
        while (found := self._held.find(mark, looked)) < 0:
            looked = max(0, len(self._held) - len(mark))
            if not await self._more():
                raise asyncio.IncompleteReadError(bytes(self._held), None)
        return self._take(found + len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            if not await self._more():
                raise asyncio.IncompleteReadError(bytes(self._held), size)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    async def _more(self) -> bool:
        """Wait for bytes; False at the end."""
        with contextlib.suppress(ConnectionResetError):
            self._held += (came := await asyncio.get_running_loop().sock_recv(self._link, 1 << 16))
            return bool(came)
        return False


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
