"""Control events and records in the SQLite file, seen by every process that shares it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from samewise.ports import ControlEvent
from samewise.store.codec import Codec
from samewise.store.event_codec import decode, encode
from samewise.store.sqlite import PATIENCE
from samewise.store.sqlite_threads import SqliteThread
from samewise.store.wake import Watch


class SqliteJournal:
    """A Journal; an event that `append` returned is on the disk. It restores what a lost file had told it."""

    def __init__(self, writer: SqliteThread, reader: SqliteThread) -> None:
        self._writer = writer
        self._reader = reader
        self._known: dict[int, bytes] = {}
        self._watch = Watch(self._look)

    async def append(self, event: ControlEvent) -> ControlEvent:
        data = encode(event)

        def insert(connection: sqlite3.Connection) -> int:
            if _last(connection) < max(self._known, default=0):
                _restore(connection, self._known)
            number = connection.execute("INSERT INTO journal(event) VALUES (?)", (data,)).lastrowid
            return number or 0

        number = await self._writer.ask(insert, within=PATIENCE, durable=True)
        self._known[number] = data
        self._watch.wake()
        return msgspec.structs.replace(event, number=number)

    async def since(self, number: int) -> Sequence[ControlEvent]:
        """As the port says; where the journal was begun anew by others, all events that are there now."""
        last, found = await self._reader.ask(_after(number), within=PATIENCE)
        if last < max(self._known, default=0):
            known = dict(self._known)
            await self._writer.ask(lambda connection: _restore(connection, known), within=PATIENCE, durable=True)
            _, found = await self._reader.ask(_after(number), within=PATIENCE)
        if found and found[0][0] == number:
            at, data = found.pop(0)
            if self._known.get(at, data) != data:
                _, found = await self._reader.ask(_after(0), within=PATIENCE)
                self._known.clear()
        self._known.update(found)
        return [decode(data, at) for at, data in found]

    def changes(self) -> AsyncIterator[None]:
        return self._watch.listen()

    async def close(self) -> None:
        self._watch.close()

    async def _look(self) -> int:
        last: int = await self._reader.ask(_last, within=PATIENCE)
        return last


class SqliteRecords:
    """Records, bounded by `keep`; sealed where a secret is set."""

    def __init__(self, writer: SqliteThread, reader: SqliteThread, codec: Codec) -> None:
        self._writer = writer
        self._reader = reader
        self._codec = codec

    async def add(self, kind: str, identity: str, value: bytes, *, keep: int) -> None:
        sealed = self._codec.seal(value, _context(kind, identity))

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO records(kind, identity, value) VALUES (?, ?, ?)", (kind, identity, sealed)
            )
            connection.execute(
                "DELETE FROM records WHERE kind = ?1 AND number <= (SELECT number FROM records WHERE kind = ?1"
                " ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (kind, keep),
            )

        await self._writer.ask(insert, within=PATIENCE)

    async def get(self, kind: str, identity: str) -> bytes | None:
        def select(connection: sqlite3.Connection) -> tuple[bytes] | None:
            row: tuple[bytes] | None = connection.execute(
                "SELECT value FROM records WHERE kind = ? AND identity = ?", (kind, identity)
            ).fetchone()
            return row

        row = await self._reader.ask(select, within=PATIENCE)
        return None if row is None else self._open(kind, identity, row[0])

    async def latest(self, kind: str, limit: int) -> Sequence[tuple[str, bytes]]:
        def select(connection: sqlite3.Connection) -> list[tuple[str, bytes]]:
            return connection.execute(
                "SELECT identity, value FROM records WHERE kind = ? ORDER BY number DESC LIMIT ?", (kind, max(0, limit))
            ).fetchall()

        opened = [
            (identity, self._open(kind, identity, value))
            for identity, value in await self._reader.ask(select, within=PATIENCE)
        ]
        return [(identity, value) for identity, value in opened if value is not None]

    def _open(self, kind: str, identity: str, value: bytes) -> bytes | None:
        try:
            return self._codec.open(value, _context(kind, identity))
        except ValueError:
            return None


def _last(connection: sqlite3.Connection) -> int:
    row: tuple[int | None] = connection.execute("SELECT max(number) FROM journal").fetchone()
    return row[0] or 0


def _after(number: int) -> Callable[[sqlite3.Connection], tuple[int, list[tuple[int, bytes]]]]:
    """The last number, and the events from `number` itself on."""
    query = "SELECT number, event FROM journal WHERE number >= ? ORDER BY number"
    return lambda connection: (_last(connection), connection.execute(query, (number,)).fetchall())


def _restore(connection: sqlite3.Connection, known: Mapping[int, bytes]) -> None:
    """Put back what is missing; what others wrote under those numbers gets new ones after them."""
    others = []
    for number, data in sorted(known.items()):
        row = connection.execute("SELECT event FROM journal WHERE number = ?", (number,)).fetchone()
        if row is None or row[0] != data:
            connection.execute("INSERT OR REPLACE INTO journal VALUES (?, ?)", (number, data))
            others.extend([] if row is None else [row])
    connection.executemany("INSERT INTO journal(event) VALUES (?)", others)


def _context(kind: str, identity: str) -> bytes:
    return f"record {kind} {identity}".encode()
