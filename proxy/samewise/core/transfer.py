"""Entries as JSON Lines, to be carried from one proxy to another.

The first line is the manifest, the last one tells how many entries there are and the SHA-256 of everything before it;
between them each line has one entry and its SHA-256. What is text stays readable. Nothing is sealed: who has the file
has the prompts and the answers.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Literal

import msgspec

from samewise.core.entry import Entry
from samewise.core.fingerprint import Environment
from samewise.core.key import KEY_VERSION

FORMAT = 1
EpochScope = Literal["all", "model", "environment", "tenant", "profile"]


class TransferRefused(Exception):
    """Lines that are no whole export of this format; the message says what is wrong with them."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where the entries come from, and what a proxy needs to find them again.

    `environments` are the active ones by model (empty: any other), so that keys can be made without an upstream.
    `epochs` are the counters that are part of keys: scope, value, count. `created` is in seconds since the epoch.
    """

    format: int = FORMAT
    key_version: int = KEY_VERSION
    created: float = 0.0
    version: str = ""
    filters: dict[str, str] = {}
    environments: dict[str, Environment] = {}
    epochs: tuple[tuple[EpochScope, str, int], ...] = ()


class _End(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    sha256: str


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    manifest: Manifest | None = None
    entry: msgspec.Raw = msgspec.Raw()
    sha256: str = ""
    end: _End | None = None


_decoder = msgspec.json.Decoder(_Line)


class Writer:
    """Makes the lines, in order: `begin`, `add` for each entry, `end`."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.entries = 0

    def begin(self, manifest: Manifest) -> bytes:
        return self._line(_Line(manifest=manifest))

    def add(self, entry: Entry) -> bytes:
        self.entries += 1
        told = msgspec.json.encode(_plain(entry))
        return self._line(_Line(entry=msgspec.Raw(told), sha256=hashlib.sha256(told).hexdigest()))

    def end(self) -> bytes:
        return self._line(_Line(end=_End(entries=self.entries, sha256=self._digest.hexdigest())))

    def _line(self, line: _Line) -> bytes:
        data = msgspec.json.encode(line) + b"\n"
        self._digest.update(data)
        return data


class Reader:
    """Reads the lines, in order. Raises TransferRefused, naming the line, for what isn't as it was written."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._number = 0
        self._ended = False
        self.entries = 0
        self.manifest: Manifest | None = None

    def read(self, data: bytes) -> Entry | None:
        """The entry of this line (with its line end), None for the first and the last one."""
        self._number += 1
        try:
            line = _decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._refused("it is no line of an export of samewise") from None
        if self._ended:
            raise self._refused("it comes after the end")
        if self.manifest is None:
            self._begin(line)
            entry = None
        elif line.end is not None:
            self._end(line.end)
            entry = None
        else:
            entry = self._entry(line)
        self._digest.update(data)
        return entry

    def close(self) -> None:
        """All lines have come. Raises TransferRefused where the last one is missing."""
        if not self._ended:
            raise TransferRefused(f"the export is cut short after line {self._number}: its last line is missing")

    def _begin(self, line: _Line) -> None:
        manifest = line.manifest
        if manifest is None:
            raise self._refused("the first line should be the manifest of an export")
        if manifest.format != FORMAT:
            raise self._refused(f"it is of format {manifest.format}; this release reads format {FORMAT}")
        if manifest.key_version != KEY_VERSION:
            raise self._refused(
                f"its keys are of version {manifest.key_version}, and would never be found by version {KEY_VERSION}"
            )
        self.manifest = manifest

    def _entry(self, line: _Line) -> Entry:
        if not bytes(line.entry):
            raise self._refused("it has no entry")
        told = bytes(line.entry)
        if hashlib.sha256(told).hexdigest() != line.sha256:
            raise self._refused("its checksum is wrong: the file was changed or damaged")
        try:
            entry = _entry(msgspec.json.decode(told))
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError):
            raise self._refused("its entry has other fields than this release knows") from None
        self.entries += 1
        return entry

    def _end(self, end: _End) -> None:
        if end.entries != self.entries or end.sha256 != self._digest.hexdigest():
            raise self._refused("the checksum of the whole is wrong: lines are missing, added or changed")
        self._ended = True

    def _refused(self, what: str) -> TransferRefused:
        return TransferRefused(f"line {self._number}: {what}")


def _plain(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(entry, builtin_types=(bytes,))
    told["request"] = _text(told["request"])
    answer = told["answer"]
    answer["body"] = _text(answer["body"])
    answer["events"] = [[_text(data), *rest] for data, *rest in answer["events"]]
    return told


def _entry(told: dict[str, Any]) -> Entry:
    told["request"] = _bytes(told["request"])
    answer = told["answer"]
    answer["body"] = _bytes(answer["body"])
    answer["events"] = [[_bytes(data), *rest] for data, *rest in answer["events"]]
    return msgspec.convert(told, Entry, builtin_types=(bytes,))


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(told: Any) -> bytes:
    return told.encode("utf-8") if isinstance(told, str) else base64.b64decode(told["base64"], validate=True)
