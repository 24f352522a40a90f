"""SHA-256 of files, hashed in parallel and remembered by what stat says of them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 4 << 20
_SETTLED = 2 * 10**9


class Unstable(OSError):
    """A file kept changing while it was read."""


@dataclass(frozen=True, order=True)
class FileState:
    """A file as stat sees it, links followed. Two equal states are taken for the same content.

    `name` is what the file is called in the digest, relative to its model. Times are in nanoseconds.
    """

    name: str
    path: str
    size: int
    modified: int
    changed: int
    inode: int
    device: int

    def key(self) -> str:
        """64 hex digits: where the digest of this very state is remembered. The name plays no part."""
        parts = (self.path, self.size, self.modified, self.changed, self.inode, self.device)
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def since(self) -> int:
        """The last time at which content or owner, mode and links changed, in nanoseconds of the wall clock."""
        return max(self.modified, self.changed)


Snapshot = tuple[FileState, ...]
"""The files of one group, by name. Empty where the model has none."""


def observe(root: Path, paths: Iterable[Path]) -> Snapshot:
    """The state of files now. One that vanishes in between is left out."""
    states = []
    for path in paths:
        try:
            found = path.stat()
            resolved = os.path.realpath(path)
        except OSError:
            continue
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        states.append(
            FileState(
                name=name,
                path=resolved,
                size=found.st_size,
                modified=found.st_mtime_ns,
                changed=found.st_ctime_ns,
                inode=found.st_ino,
                device=found.st_dev,
            )
        )
    return tuple(sorted(states))


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/samewise/digests`, or the same under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "samewise" / "digests"


class Digests:
    """Digests of files and of groups of files. Threads may share one.

    `cache` is a folder of one small file per known state, None to remember nothing. A folder that can't
    be written only costs time. What changed in the last two seconds is never remembered: a second write
    within the clock's grain would look the same.
    """

    def __init__(self, cache: Path | None = None, *, threads: int | None = None) -> None:
        self._cache = cache
        self._threads = threads or min(16, (os.cpu_count() or 1) * 2)

    def group(self, snapshot: Snapshot) -> str:
        """`sha256:` and 64 hex digits over names and contents, `none` for no files.

        Raises Unstable where a file is no longer what the snapshot says, OSError where it can't be read.
        """
        if not snapshot:
            return "none"
        contents = self.contents(snapshot)
        total = hashlib.sha256()
        for state, content in zip(snapshot, contents, strict=True):
            total.update(f"{state.name}\0{state.size}\0{content}\n".encode("utf-8", "surrogateescape"))
        return f"sha256:{total.hexdigest()}"

    def contents(self, snapshot: Snapshot) -> Sequence[str]:
        """64 hex digits for each file, in the snapshot's order. Raises as `group` does."""
        if len(snapshot) == 1:
            return [self._content(snapshot[0])]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="digest") as pool:
            return list(pool.map(self._content, snapshot))

    def _content(self, state: FileState) -> str:
        known = self._recall(state)
        if known is not None:
            return known
        begun = time.time_ns()
        hasher = hashlib.sha256()
        with Path(state.path).open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                hasher.update(block)
            found = os.fstat(file.fileno())
        now = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
        if now != (state.size, state.modified, state.changed, state.inode, state.device):
            raise Unstable(f"{state.path} changed while it was read")
        digest = hasher.hexdigest()
        if begun - state.since() > _SETTLED:
            self._remember(state, digest)
        return digest

    def _recall(self, state: FileState) -> str | None:
        if self._cache is None:
            return None
        try:
            text = (self._cache / state.key()).read_text()
        except (OSError, ValueError):
            return None
        return text if len(text) == 64 and set(text) <= set("0123456789abcdef") else None

    def _remember(self, state: FileState, digest: str) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self._cache)
            with os.fdopen(handle, "w") as file:
                file.write(digest)
            Path(temporary).rename(self._cache / state.key())
        except OSError:
            return


def text_digest(text: str) -> str:
    """`sha256:` and 64 hex digits of a text in UTF-8."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
