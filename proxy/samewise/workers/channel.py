"""What workers ask each other, over sockets that only this user can open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from samewise.telemetry.snapshot import Snapshot
from samewise.workers import frames

PATIENCE = 1.0
"""Seconds that a sibling may take to answer before the others go on without it."""
_RETRY = 0.5


class Told(msgspec.Struct, frozen=True):
    """What a worker says of itself. `instance` is another after each start."""

    instance: str
    snapshot: Snapshot
    status: dict[str, Any]


class Question(msgspec.Struct, frozen=True):
    """`told`, `recent` (so many), `events` (as long as someone listens), `catch-up`, or `look` at an upstream."""

    kind: str
    subject: str = ""


class Door:
    """Answers siblings. Every callable is cheap or bounded; what fails is answered with nothing."""

    def __init__(
        self,
        *,
        told: Callable[[], Told],
        recent: Callable[[int], list[dict[str, Any]]],
        events: Callable[[], AsyncIterator[dict[str, Any]]],
        catch_up: Callable[[], Awaitable[None]],
        look: Callable[[str], Awaitable[None]],
    ) -> None:
        self._told = told
        self._recent = recent
        self._events = events
        self._catch_up = catch_up
        self._look = look
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, path: str) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path, limit=1 << 20)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (data := await frames.read(reader)) is not None:
                await self._answer(msgspec.msgpack.decode(data, type=Question), writer)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, question: Question, writer: asyncio.StreamWriter) -> None:
        match question.kind:
            case "told":
                frames.write(writer, self._told())
            case "recent":
                frames.write(writer, self._recent(int(question.subject)))
            case "events":
                async for event in self._events():
                    frames.write(writer, event)
                    await writer.drain()
            case "catch-up":
                with contextlib.suppress(Exception):
                    await self._catch_up()
                frames.write(writer, True)
            case "look":
                with contextlib.suppress(Exception):
                    await self._look(question.subject)
                frames.write(writer, True)


class Sibling:
    """Another worker. It may be gone, or on its way back: then it says nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def told(self) -> Told | None:
        """What it says of itself now."""
        data = await self._ask(Question("told"))
        return None if data is None else msgspec.msgpack.decode(data, type=Told)

    async def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last things that happened there."""
        data = await self._ask(Question("recent", str(limit)))
        return [] if data is None else msgspec.msgpack.decode(data, type=list[dict[str, Any]])

    async def tell(self, question: Question) -> None:
        """Return when it has done what it is asked to, or can't be asked."""
        await self._ask(question)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens there from now on, over its restarts; ends only with the caller."""
        while True:
            writer = None
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
                frames.write(writer, Question("events"))
                while (data := await frames.read(reader)) is not None:
                    yield msgspec.msgpack.decode(data)
            except OSError:
                pass
            finally:
                if writer is not None:
                    writer.close()
            await asyncio.sleep(_RETRY)

    def close(self) -> None:
        if self._link is not None:
            self._link[1].close()
            self._link = None

    async def _ask(self, question: Question) -> bytes | None:
        try:
            async with asyncio.timeout(PATIENCE), self._turn:
                for link in (self._link, None):
                    reader, writer = link or await asyncio.open_unix_connection(self._path)
                    self._link = None
                    frames.write(writer, question)
                    data = await frames.read(reader)
                    if data is not None:
                        self._link = (reader, writer)
                        return data
                    writer.close()
        except (OSError, TimeoutError):
            self.close()
        return None
