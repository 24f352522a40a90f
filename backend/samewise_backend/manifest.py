"""The manifest: what a backend is (identity), and what only describes this one process (info).

Files are watched: what the engine loaded stays in the identity, and what lies on the disk now joins it
as `<group>_on_disk` as soon as it differs.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from samewise.core.fingerprint import environment_id
from samewise_backend.digests import Digests, FileState, Snapshot, Unstable, text_digest
from samewise_backend.model_files import Lister

INTERVAL = 0.25
"""Seconds between two looks at the files, at most: a change is in the header of the next answer after that."""
_TRIES = 5


@dataclass(frozen=True)
class Loaded:
    """What an engine read of a group of files: their state then, and the digest of what it read."""

    snapshot: Snapshot
    digest: str


@dataclass(frozen=True)
class Manifest:
    """`body` is the JSON that `GET /samewise/environment` answers with; `id` is the header's value."""

    id: str
    body: bytes
    identity: Mapping[str, Any]


def read(listers: Mapping[str, Lister], digests: Digests) -> dict[str, Loaded]:
    """Digest every group as it is now. Raises Unstable where files keep changing."""
    return {name: _settled(lister, digests) for name, lister in listers.items()}


def _settled(lister: Lister, digests: Digests) -> Loaded:
    for _ in range(_TRIES):
        snapshot = lister()
        try:
            digest = digests.group(snapshot)
        except OSError:
            time.sleep(0.05)
            continue
        if lister() == snapshot:
            return Loaded(snapshot, digest)
    raise Unstable("the model's files keep changing")


def confirm(before: Mapping[str, Loaded], listers: Mapping[str, Lister], instance: str) -> dict[str, Loaded]:
    """What an engine loaded, given what the files were before it began; call it when the engine is ready.

    A group that changed meanwhile may have been read in either state: its digest becomes `unknown:` and
    the instance, which no other process shares.
    """
    confirmed = {}
    for name, loaded in before.items():
        same = listers[name]() == loaded.snapshot
        confirmed[name] = loaded if same else Loaded(loaded.snapshot, f"unknown:{instance}")
    return confirmed


def encode_loaded(loaded: Mapping[str, Loaded]) -> str:
    """JSON, to hand from the launcher to the process that loads the model."""
    groups = {
        name: {"digest": one.digest, "files": [list(vars(state).values()) for state in one.snapshot]}
        for name, one in loaded.items()
    }
    return json.dumps(groups)


def decode_loaded(text: str) -> dict[str, Loaded]:
    """The reverse of `encode_loaded`. Raises ValueError for anything else."""
    try:
        return {
            name: Loaded(tuple(FileState(*fields) for fields in one["files"]), one["digest"])
            for name, one in json.loads(text).items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not what the launcher writes: {error}") from None


def build(identity: Mapping[str, Any], info: Mapping[str, Any]) -> Manifest:
    """A manifest with its id."""
    whole = {"id": environment_id(identity), **identity, "info": dict(info)}
    return Manifest(id=whole["id"], body=json.dumps(whole, ensure_ascii=False).encode(), identity=dict(identity))


def process_info(instance: str) -> dict[str, Any]:
    """What distinguishes this process from another of the same identity."""
    return {
        "instance": instance,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def new_instance() -> str:
    """32 hex digits that no other process has."""
    return uuid.uuid4().hex


class Live:
    """The manifest of a running engine, kept true while files, adapters and weights change beneath it.

    `facts` are the identity's other members. `current` is cheap and may be called for every answer: it
    looks at the files at most every `interval` seconds, and hashes what changed in a thread of its own.
    Until that is done the identity holds what stat says (`stat:` and a hash), so that it changes at once.
    Any thread may call any method.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        info: Mapping[str, Any],
        loaded: Mapping[str, Loaded],
        listers: Mapping[str, Lister],
        digests: Digests,
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = dict(facts)
        self._info = dict(info)
        self._groups = {name: _Group(name, listers[name], one, digests) for name, one in loaded.items()}
        self._adapters: dict[str, _Group] = {}
        self._digests = digests
        self._interval = interval
        self._clock = clock
        self._looked = clock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        self._lock = threading.RLock()
        self._built: Manifest | None = None
        self._mutations = 0

    def current(self, *, look: bool = False) -> Manifest:
        """The manifest now; `look` looks at the files whatever the interval says."""
        with self._lock:
            now = self._clock()
            if look or now - self._looked >= self._interval:
                self._looked = now
                groups = [*self._groups.values(), *self._adapters.values()]
                for group in groups:
                    if group.look(self._pool):
                        self._built = None
            if self._built is None:
                self._built = build(self._identity(), self._info)
            return self._built

    def replace(self, loaded: Mapping[str, Loaded], **facts: Any) -> None:
        """The engine has read these groups anew."""
        with self._lock:
            for name, one in loaded.items():
                self._groups[name] = _Group(name, self._groups[name].lister, one, self._digests)
            self._facts |= facts
            self._built = None

    def adapters(self, present: Mapping[str, Lister], *, reread: frozenset[str] = frozenset()) -> None:
        """The LoRA adapters that the engine has now, by name and by where their files are.

        One whose lister is the same object keeps what was loaded. Those in `reread` are read again at each
        request, so for them what lies on the disk is what answers. Hashes new ones: not for an event loop.
        """
        with self._lock:
            kept = {name: one for name, one in self._adapters.items() if present.get(name) is one.lister}
        for name, lister in present.items():
            if name not in kept:
                kept[name] = _Group(name, lister, _settled(lister, self._digests), self._digests, name in reread)
        with self._lock:
            self._adapters = kept
            self._built = None

    def mutated(self) -> None:
        """The engine's weights were changed past their files: nobody else has them, and nobody can tell."""
        with self._lock:
            self._mutations += 1
            self._facts["mutated"] = f"{self._info.get('instance')}:{self._mutations}"
            self._built = None

    def close(self) -> None:
        """End the hashing thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _identity(self) -> dict[str, Any]:
        identity = dict(self._facts)
        for group in self._groups.values():
            identity |= group.members()
        adapters: dict[str, Any] = {}
        for adapter in self._adapters.values():
            adapters |= adapter.members()
        return identity | {"adapters": adapters}


class _Group:
    """One group of files, watched. Guarded by its owner's lock."""

    def __init__(self, name: str, lister: Lister, loaded: Loaded, digests: Digests, reread: bool = False) -> None:
        self.name = name
        self.lister = lister
        self._loaded = loaded
        self._digests = digests
        self._reread = reread
        self._seen = loaded.snapshot
        self._disk: str | None = None
        self._pending: Future[str] | None = None

    def look(self, pool: ThreadPoolExecutor) -> bool:
        """Whether `members` has changed since the last look."""
        before = self._disk
        snapshot = self.lister()
        if snapshot != self._seen:
            self._seen = snapshot
            self._disk = f"stat:{text_digest(repr(snapshot))[7:39]}"
            self._pending = pool.submit(self._digests.group, snapshot)
        if self._pending is not None and self._pending.done():
            if self._pending.exception() is None:
                digest = self._pending.result()
                self._disk = None if digest == self._loaded.digest else digest
            else:
                self._seen = ()
            self._pending = None
        return self._disk != before

    def members(self) -> dict[str, str]:
        if self._disk is None:
            return {self.name: self._loaded.digest}
        if self._reread:
            return {self.name: self._disk}
        return {self.name: self._loaded.digest, f"{self.name}_on_disk": self._disk}
