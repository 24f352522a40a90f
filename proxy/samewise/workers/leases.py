"""Leases among the workers of one machine: the supervisor gives them out; a worker that dies gives back what it had."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

import msgspec

from samewise.ports import Turn
from samewise.workers import frames

RECENT = 2.0
"""Seconds for which a key counts as landed: longer than a look into the store that began before it did."""
_RETRY = 0.5


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """`stored` None asks for a turn, else the turn is over."""

    name: str
    stored: bool | None = None


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The oldest question for this name that has no answer yet is answered."""

    name: str
    turn: Turn


class Desk:
    """One holder a name; who asks meanwhile waits for the end of it."""

    def __init__(self) -> None:
        self._holders: dict[str, asyncio.StreamWriter] = {}
        self._waiting: dict[str, deque[asyncio.StreamWriter]] = {}
        self._landed: OrderedDict[str, float] = OrderedDict()
        self._server: asyncio.Server | None = None

    async def open(self, path: str) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (data := await frames.read(reader)) is not None:
                asked = msgspec.msgpack.decode(data, type=Asked)
                if asked.stored is None:
                    self._turn(asked.name, writer)
                elif self._holders.get(asked.name) is writer:
                    self._over(asked.name, stored=asked.stored)
        finally:
            self._left(writer)
            writer.close()

    def _turn(self, name: str, writer: asyncio.StreamWriter) -> None:
        if name in self._holders:
            self._waiting.setdefault(name, deque()).append(writer)
        elif self._just_landed(name):
            frames.write(writer, Answered(name, "landed"))
        else:
            self._holders[name] = writer
            frames.write(writer, Answered(name, "mine"))

    def _over(self, name: str, *, stored: bool) -> None:
        del self._holders[name]
        if stored:
            self._landed[name] = time.monotonic()
            self._landed.move_to_end(name)
        for waiter in self._waiting.pop(name, ()):
            frames.write(waiter, Answered(name, "landed" if stored else "free"))

    def _left(self, writer: asyncio.StreamWriter) -> None:
        for name, waiting in list(self._waiting.items()):
            self._waiting[name] = deque(waiter for waiter in waiting if waiter is not writer)
        for name in [name for name, holder in self._holders.items() if holder is writer]:
            del self._holders[name]
            others = self._waiting.get(name)
            if others:
                self._turn(name, others.popleft())
            else:
                self._waiting.pop(name, None)

    def _just_landed(self, name: str) -> bool:
        since = time.monotonic() - RECENT
        while self._landed and next(iter(self._landed.values())) < since:
            self._landed.popitem(last=False)
        return name in self._landed


class DeskLeases:
    """Leases, from a desk. `flushed` returns when what this process stored is where the others see it."""

    def __init__(self, path: str, flushed: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self._flushed = flushed
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[str, deque[asyncio.Future[Turn]]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; without a desk every turn is free."""
        self._listening = asyncio.create_task(self._listen())
        await asyncio.sleep(0)

    async def turn(self, key: str, since: int) -> Turn:
        if self._writer is None:
            return "free"
        name = f"{key}:{since}"
        answer: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(answer)
        frames.write(self._writer, Asked(name))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result() == "mine":
                self._tell(Asked(name, False))
            raise

    async def release(self, key: str, since: int, *, stored: bool) -> None:
        if stored:
            with contextlib.suppress(Exception):
                await self._flushed()
        self._tell(Asked(f"{key}:{since}", stored))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        if self._writer is not None:
            self._writer.close()

    def _tell(self, asked: Asked) -> None:
        if self._writer is not None:
            frames.write(self._writer, asked)

    async def _listen(self) -> None:
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                while (data := await frames.read(reader)) is not None:
                    self._answered(msgspec.msgpack.decode(data, type=Answered))
            except OSError:
                pass
            finally:
                self._nobody()
            await asyncio.sleep(_RETRY)

    def _answered(self, answered: Answered) -> None:
        waiting = self._waiting.get(answered.name)
        answer = waiting.popleft() if waiting else None
        if not waiting:
            self._waiting.pop(answered.name, None)
        if answer is not None and not answer.done():
            answer.set_result(answered.turn)
        elif answered.turn == "mine":
            self._tell(Asked(answered.name, False))

    def _nobody(self) -> None:
        self._writer = None
        for waiting in self._waiting.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_result("free")
        self._waiting.clear()
