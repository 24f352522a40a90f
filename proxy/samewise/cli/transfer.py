"""`export` and `import`: entries in a file that another proxy can take."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

import click
import zstandard

from samewise.cli import progress, show
from samewise.cli.client import UNREACHABLE, USAGE, Admin, Fail
from samewise.cli.options import admin, as_json
from samewise.core.transfer import Reader, TransferRefused

_ZSTD = b"\x28\xb5\x2f\xfd"
_LEVEL = 10


@click.command(name="export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tenant", help="Entries of this tenant alone.")
@click.option("--model", help="Entries of this model alone.")
@click.option("--environment", help="Entries of this environment alone.")
@click.option("--tag", help="Entries with this tag alone.")
@as_json
@admin
def export(proxy: Admin, *, file: Path, as_json: bool, **filters: str | None) -> None:
    """Write recorded answers to FILE: JSON Lines in zstd, with checksums. They are not encrypted there."""
    query = urlencode({name: value for name, value in filters.items() if value is not None})
    partial = file.with_name(file.name + ".part")
    reader = Reader()
    try:
        with (
            partial.open("wb") as out,
            zstandard.ZstdCompressor(level=_LEVEL).stream_writer(out) as packed,
            progress.bar("exporting", hidden=as_json) as advance,
        ):
            for line in proxy.lines("export", query=query):
                reader.read(line)
                packed.write(line)
                advance(reader.entries, None)
        reader.close()
        partial.replace(file)
    except TransferRefused as refused:
        raise Fail(f"the export did not come whole ({refused}); try again", UNREACHABLE) from None
    except OSError as error:
        raise Fail(f"{file} can't be written: {error.strerror or error}", USAGE) from None
    finally:
        partial.unlink(missing_ok=True)
    told = {"file": str(file), "entries": reader.entries, "bytes": file.stat().st_size}
    show.as_json(told) if as_json else click.echo(
        f"{show.count(told['entries'], 'entry', 'entries')}, {told['bytes']} bytes, in {file}"
    )


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--ttl", type=click.FloatRange(0, min_open=True), help="Seconds from now; else what they have left.")
@as_json
@admin
def import_(proxy: Admin, *, file: Path, ttl: float | None, as_json: bool) -> None:
    """Take the answers that `samewise export` wrote to FILE. Checked whole before anything is sent."""
    try:
        entries = _checked(file)
        with progress.bar("importing", entries, hidden=as_json) as advance:
            query = urlencode({"ttl": ttl}) if ttl is not None else ""
            told = proxy.upload("import", query=query, lines=_told(_read(file), entries, advance))
    except TransferRefused as refused:
        raise Fail(f"{file}: {refused}", USAGE) from None
    except (OSError, zstandard.ZstdError) as error:
        raise Fail(f"{file} can't be read: {getattr(error, 'strerror', None) or error}", USAGE) from None
    if as_json:
        show.as_json(told)
        return
    click.echo(show.count(told["entries"], "entry", "entries"))
    for why, count in told["skipped"].items():
        click.echo(f"{count} not taken: {_WHY.get(why, why)}")


_WHY = {
    "expired": "expired (give them a new life with --ttl)",
    "refused": "refused by the store (too large, or ended there)",
    "unreachable": "their keys belong to epochs that are past there",
}


def _checked(file: Path) -> int:
    """How many entries there are. Raises TransferRefused."""
    reader = Reader()
    for line in _read(file):
        reader.read(line)
    reader.close()
    return reader.entries


def _read(file: Path) -> Iterator[bytes]:
    """The lines of a file, packed or not."""
    with file.open("rb") as raw:
        packed = raw.read(4) == _ZSTD
        raw.seek(0)
        if not packed:
            yield from raw
            return
        unpacked: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        yield from io.BufferedReader(unpacked)  # type: ignore[type-var]


def _told(lines: Iterator[bytes], entries: int, advance: Callable[[int, int | None], None]) -> Iterator[bytes]:
    for number, line in enumerate(lines):  # the first is the head
        yield line
        advance(min(number, entries), entries)
