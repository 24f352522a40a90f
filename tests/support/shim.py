"""A TCP shim in front of any server, which a test makes slow, silent, lying or dead while it runs.

async with Shim.before(server.port) as shim:
    shim.delay = (0.05, 0.2)        # each reply waits that long (a number, or a range drawn from `seed`)
    shim.freeze()                   # bytes stop both ways, sockets stay open; `thaw()` lets them go on
    shim.hold(); shim.release()     # requests pass, and their replies wait
    shim.cut_after(10)              # every connection is reset once 10 more bytes of reply have passed
    shim.answer = redis_error("OOM out of memory", only={"SET"})
    shim.refuse(); shim.accept()    # the port is closed; open again
    shim.drop()                     # all open connections are reset
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

Answer = Callable[[bytes], bytes | None]
"""Sees a chunk of request; returns the reply to give in the server's place, None to let the chunk through."""


class Shim:
    """One listening loopback port; all controls act at once, on open connections too."""

    def __init__(self, host: str, port: int, *, seed: int = 0) -> None:
        self.delay: float | tuple[float, float] = 0.0
        self.answer: Answer | None = None
        self.accepted = 0
        """Connections that ever came."""
        self.requests: list[bytes] = []
        """Every chunk of request, in order of arrival."""
        self.port = 0
        self._target = (host, port)
        self._random = random.Random(seed)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._replying = asyncio.Event()
        self._replying.set()
        self._cut: int | None = None
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def before(cls, port: int, host: str = "127.0.0.1", *, seed: int = 0) -> AsyncIterator[Shim]:
        """A shim that listens, for as long as the block lasts."""
        shim = cls(host, port, seed=seed)
        await shim.accept()
        try:
            yield shim
        finally:
            await shim.close()

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def freeze(self) -> None:
        """No byte moves; new connections are accepted and hear nothing."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def hold(self) -> None:
        """Replies wait, on this side of the server."""
        self._replying.clear()

    def release(self) -> None:
        self._replying.set()

    def cut_after(self, size: int | None) -> None:
        """Reset a connection once `size` more bytes of reply (over all connections) passed. None: no more cuts."""
        self._cut = size

    async def accept(self) -> None:
        """Listen, on the same port as before."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Close the port and every connection: connecting is refused until `accept`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        """Reset every open connection."""
        for writer in list(self._links):
            _reset(writer)
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        self.refuse()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._tasks.add(task)
        self._links.add(writer)
        up: asyncio.StreamWriter | None = None
        try:
            down, up = await asyncio.open_connection(*self._target)
            self._links.add(up)
            await _first(self._forward(reader, up, writer), self._backward(down, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for link in (writer, up):
                if link is not None:
                    self._links.discard(link)
                    _reset(link)
            self._tasks.discard(task)

    async def _forward(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(1 << 16):
            await self._flowing.wait()
            self.requests.append(chunk)
            reply = self.answer(chunk) if self.answer is not None else None
            if reply is not None:
                writer.write(reply)
                await writer.drain()
                continue
            up.write(chunk)
            await up.drain()

    async def _backward(self, down: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await down.read(1 << 16):
            if self.delay:
                low, high = (self.delay, self.delay) if isinstance(self.delay, int | float) else self.delay
                await asyncio.sleep(self._random.uniform(low, high))
            await self._replying.wait()
            await self._flowing.wait()
            if self._cut is not None:
                passed, self._cut = chunk[: self._cut], max(0, self._cut - len(chunk))
                if len(passed) < len(chunk):
                    writer.write(passed)
                    await writer.drain()
                    await asyncio.sleep(0)
                    return
            writer.write(chunk)
            await writer.drain()


def redis_commands(chunk: bytes) -> list[str]:
    """Names of the commands in a chunk that holds whole RESP arrays, in upper case."""
    names = []
    lines = chunk.split(b"\r\n")
    at = 0
    while at < len(lines) and lines[at].startswith(b"*"):
        count = int(lines[at][1:])
        names.append(lines[at + 2].decode("ascii", "replace").upper())
        at += 1
        for _ in range(count):
            size, taken = int(lines[at][1:]), 0
            at += 1
            taken = len(lines[at])
            while taken < size:
                at += 1
                taken += 2 + len(lines[at])
            at += 1
    return names


def redis_error(message: str, *, only: Collection[str] | None = None) -> Answer:
    """An answer that is `-message`, to every command, or to chunks that hold one of these."""

    def answer(chunk: bytes) -> bytes | None:
        names = redis_commands(chunk)
        if only is not None and not any(name in only for name in names):
            return None
        return f"-{message}\r\n".encode() * max(1, len(names))

    return answer


async def _first(*flows: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(flow) for flow in flows]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():
        return
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
