"""The statements of the SQLite store, each a function of a connection and plain values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from samewise.store.segments import Cut, head
from samewise.store.segments import whole as join

FENCE_KEEP = 2 * 86_400
"""Seconds that a fence is kept: longer than any request may run."""


def put(connection: sqlite3.Connection, key: str, stored: Cut, *, expires: float, began: int, now: float) -> bool:
    """False where a fence is higher than `began`."""
    value, length = stored.value, len(stored.value) + sum(map(len, stored.parts))
    fence = connection.execute("SELECT fence FROM fences WHERE key = ?", (key,)).fetchone()
    if fence is not None and fence[0] > began:
        return False
    old = connection.execute("SELECT id, size FROM entries WHERE key = ?", (key,)).fetchone()
    if old is None:
        cursor = connection.execute(
            "INSERT INTO entries(key, size, expires, used) VALUES (?, ?, ?, ?)", (key, length, expires, now)
        )
        number = cursor.lastrowid
        connection.execute("INSERT INTO bodies VALUES (?, ?)", (number, value))
        _add(connection, 1, length)
    else:
        number, size = old
        connection.execute(
            "UPDATE entries SET size = ?, expires = ?, used = ? WHERE id = ?", (length, expires, now, number)
        )
        connection.execute("UPDATE bodies SET value = ? WHERE id = ?", (value, number))
        _add(connection, 0, length - size)
    parts = [(number, at, stored.token, part) for at, part in enumerate(stored.parts)]
    connection.executemany("INSERT INTO segments VALUES (?, ?, ?, ?)", parts)
    return True


def segment(connection: sqlite3.Connection, number: int, token: str, part: int) -> bytes | None:
    """One segment of the value in this row, where it is still that of the token."""
    row = connection.execute(
        "SELECT value FROM segments WHERE id = ? AND part = ? AND token = ?", (number, part, token)
    ).fetchone()
    return None if row is None else row[0]


def whole(connection: sqlite3.Connection, number: int, value: bytes) -> bytes | None:
    """What the value in this row stands for; None where a segment is missing."""
    told = head(value)
    if told is None:
        return value
    return join(told, [segment(connection, number, told.token, part) for part in range(told.parts)])


def free(connection: sqlite3.Connection, key: str, value: bytes) -> int:
    """Delete the entry under this key where exactly this value stands there; how many there were."""
    row = get(connection, key)
    return delete(connection, [key]) if row is not None and row[1] == value else 0


def get(connection: sqlite3.Connection, key: str) -> tuple[int, bytes] | None:
    """Row number and value, which may be the head of segments."""
    row: tuple[int, bytes] | None = connection.execute(
        "SELECT entries.id, value FROM entries JOIN bodies ON bodies.id = entries.id WHERE key = ?", (key,)
    ).fetchone()
    return row


def page(connection: sqlite3.Connection, after: int, limit: int) -> Sequence[tuple[int, str, bytes | None]]:
    """The next rows in the order of their numbers, each value whole, or None."""
    rows = connection.execute(
        "SELECT entries.id, key, value FROM entries JOIN bodies ON bodies.id = entries.id"
        " WHERE entries.id > ? ORDER BY entries.id LIMIT ?",
        (after, limit),
    ).fetchall()
    return [(number, key, whole(connection, number, value)) for number, key, value in rows]


def discard(connection: sqlite3.Connection, key: str, fence: int, now: float) -> bool:
    """Delete the entry, where there is one, and raise its fence."""
    connection.execute(
        "INSERT INTO fences VALUES (?, ?, ?) ON CONFLICT(key) DO UPDATE"
        " SET fence = max(fence, excluded.fence), at = excluded.at",
        (key, fence, now),
    )
    return _delete(connection, connection.execute("SELECT id, size FROM entries WHERE key = ?", (key,)).fetchall()) > 0


def delete(connection: sqlite3.Connection, keys: Iterable[str]) -> int:
    """Delete the entries under these keys; how many there were."""
    select = "SELECT id, size FROM entries WHERE key = ?"
    return _delete(connection, [row for key in keys for row in connection.execute(select, (key,))])


def touch(connection: sqlite3.Connection, numbers: Iterable[int], now: float) -> None:
    """These rows were used."""
    connection.executemany("UPDATE entries SET used = ? WHERE id = ?", [(now, number) for number in numbers])


def expire(connection: sqlite3.Connection, now: float, limit: int) -> int:
    """Delete at most `limit` entries whose time is over, and as many old fences; how many entries went."""
    connection.execute(
        "DELETE FROM fences WHERE key IN (SELECT key FROM fences WHERE at < ? LIMIT ?)", (now - FENCE_KEEP, limit)
    )
    rows = connection.execute("SELECT id, size FROM entries WHERE expires <= ? LIMIT ?", (now, limit)).fetchall()
    return _delete(connection, rows)


def evict(connection: sqlite3.Connection, *, max_entries: int, max_bytes: int, limit: int) -> int:
    """Delete the least recently used, at most `limit`, until both bounds hold; how many went."""
    entries, size = totals(connection)
    if entries <= max_entries and size <= max_bytes:
        return 0
    rows = []
    for number, length in connection.execute("SELECT id, size FROM entries ORDER BY used, id LIMIT ?", (limit,)):
        if entries <= max_entries and size <= max_bytes:
            break
        rows.append((number, length))
        entries, size = entries - 1, size - length
    return _delete(connection, rows)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Entries, and bytes of their values."""
    row: tuple[int, int] = connection.execute("SELECT entries, bytes FROM totals").fetchone()
    return row


def _delete(connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> int:
    if rows:
        numbers = [(number,) for number, _ in rows]
        connection.executemany("DELETE FROM entries WHERE id = ?", numbers)
        connection.executemany("DELETE FROM bodies WHERE id = ?", numbers)
        _add(connection, -len(rows), -sum(size for _, size in rows))
    return len(rows)


def _add(connection: sqlite3.Connection, entries: int, size: int) -> None:
    connection.execute("UPDATE totals SET entries = entries + ?, bytes = bytes + ?", (entries, size))
