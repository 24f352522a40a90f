"""A worker's place among several, as its supervisor tells it on stdin."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import BinaryIO

import msgspec

from samewise.settings import Settings


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Worker `index` of `count`. `data` and `admin` are inherited sockets, bound; only one worker has the second.

    `folder` holds the sockets by which the processes talk, and is this user's alone.
    """

    index: int
    count: int
    folder: Path
    data: int
    admin: int | None = None

    def door(self, index: int) -> str:
        """The socket at which a worker answers its siblings."""
        return door(self.folder, index)

    @property
    def desk(self) -> str:
        """The socket at which the supervisor gives out leases."""
        return desk(self.folder)


def door(folder: Path, index: int) -> str:
    return str(folder / f"worker-{index}")


def desk(folder: Path) -> str:
    return str(folder / "leases")


def tell(place: Place, settings: Settings) -> bytes:
    """What goes into a worker's stdin, which stays open for as long as its supervisor lives."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    data = pickle.dumps((place, values))
    return len(data).to_bytes(4, "big") + data


def told(stream: BinaryIO) -> tuple[Place, Settings]:
    """What `tell` said. Raises EOFError where nobody says anything."""
    data = stream.read(int.from_bytes(stream.read(4), "big"))
    place, values = pickle.loads(data)
    return place, Settings.model_construct(**values)
