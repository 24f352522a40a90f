"""The file behind the SQLite store: its schema, how it is opened, and what becomes of a broken one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

VERSION = 1

_SCHEMA = """
CREATE TABLE entries(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, expires REAL NOT NULL, used REAL NOT NULL);
CREATE INDEX entries_expires ON entries(expires);
CREATE INDEX entries_used ON entries(used);
CREATE TABLE bodies(id INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE totals(entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TABLE fences(key TEXT PRIMARY KEY, fence INTEGER NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX fences_at ON fences(at);
CREATE TABLE journal(number INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL);
CREATE TABLE records(
  number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, identity TEXT NOT NULL, value BLOB NOT NULL,
  UNIQUE(kind, identity));
CREATE INDEX records_kind ON records(kind, number);
CREATE TABLE schema(version INTEGER NOT NULL);
"""

_SEGMENTS = """
CREATE TABLE segments(
  id INTEGER NOT NULL, part INTEGER NOT NULL, token TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(id, part));
CREATE TRIGGER segments_go AFTER DELETE ON bodies BEGIN DELETE FROM segments WHERE id = OLD.id; END;
CREATE TRIGGER segments_change AFTER UPDATE ON bodies BEGIN DELETE FROM segments WHERE id = OLD.id; END
"""
"""What came after the schema: files that have it not get it, and who knows nothing of it keeps it whole."""

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


class Unusable(Exception):
    """The file can't be used by this release: `corrupt`, or `version` where another release wrote it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def kind_of(error: BaseException) -> str:
    """One bounded word: corrupt, version, full, locked, readonly, io, unopenable, error."""
    if isinstance(error, Unusable):
        return error.kind
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CORRUPT:
        return "corrupt"
    words = {
        sqlite3.SQLITE_FULL: "full",
        sqlite3.SQLITE_BUSY: "locked",
        sqlite3.SQLITE_LOCKED: "locked",
        sqlite3.SQLITE_READONLY: "readonly",
        sqlite3.SQLITE_IOERR: "io",
        sqlite3.SQLITE_CANTOPEN: "unopenable",
    }
    return words.get(code, "error")


def connect(path: Path, *, busy: float, create: bool) -> sqlite3.Connection:
    """A connection in write-ahead mode whose schema is ours; a new file is its owner's alone.

    `busy` is how long a lock is waited for, in seconds.

    Raises sqlite3.Error, or Unusable where the file must be set aside.
    """
    if create:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=busy, isolation_level=None, check_same_thread=False)
    try:
        if create:
            _check_version(connection)
            _write_ahead(connection, busy)
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute("PRAGMA synchronous = NORMAL")
            _ensure_schema(connection)
        else:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("SELECT version FROM schema").fetchone()
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and kind_of(error) == "corrupt":
            raise Unusable("corrupt") from error
        raise
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Tells one file from another under the same name; None where there is none."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def set_aside(path: Path, broken: tuple[int, int] | None, word: str) -> Path | None:
    """Rename the broken file (and its companions) and return its new name.

    None where another process did so already: the name leads to another file than `broken` by now.
    """
    with _alone(path):
        if broken is None or identity(path) != broken:
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        target = path.with_name(f"{path.name}.{word}-{stamp}-{os.getpid()}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
        return target


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time, where the platform has flock."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write_ahead(connection: sqlite3.Connection, busy: float) -> None:
    """The change of mode doesn't wait for locks by itself."""
    deadline = time.monotonic() + busy
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if kind_of(error) != "locked" or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _check_version(connection: sqlite3.Connection) -> bool:
    """True where the schema is there and ours, False where there is none yet; else Unusable."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema'").fetchone() is None:
        return False
    row = connection.execute("SELECT version FROM schema").fetchone()
    if row is None or row[0] != VERSION:
        raise Unusable("version")
    return True


def _has_segments(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'segments'").fetchone() is not None


def _ensure_schema(connection: sqlite3.Connection) -> None:
    if _check_version(connection) and _has_segments(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _check_version(connection):
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO schema VALUES (?)", (VERSION,))
        if not _has_segments(connection):
            for statement in _SEGMENTS.strip().split(";\n"):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
