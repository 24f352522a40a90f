"""One worker among several: what it shares with the others, put together."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable

import msgspec

from samewise.ports import Member
from samewise.store.factory import Stores
from samewise.telemetry.observer import Telemetry
from samewise.workers.channel import Door, Told
from samewise.workers.leases import DeskLeases
from samewise.workers.place import Place
from samewise.workers.siblings import Siblings, ToldJournal
from samewise.workers.supervisor import READY


class Worker:
    """`siblings` are the others. Sockets are the supervisor's, inherited."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.siblings = Siblings(place)
        self._door: Door | None = None
        self._desk: DeskLeases | None = None

    def sockets(self) -> tuple[socket.socket, socket.socket | None]:
        """The data port, and the admin port where it is this worker's."""
        admin = self.place.admin
        return socket.socket(fileno=self.place.data), None if admin is None else socket.socket(fileno=admin)

    async def sharing(self, stores: Stores) -> Stores:
        """The stores, with a journal that tells the others, and leases where the store has none of its own."""
        leases = stores.leases
        if leases is None:
            leases = self._desk = DeskLeases(self.place.desk, stores.store.flush)
            await self._desk.open()
        return msgspec.structs.replace(stores, journal=ToldJournal(stores.journal, self.siblings), leases=leases)

    def looked(self, member: Member) -> None:
        """An upstream is not what it was: the others look at it too."""
        self.siblings.look(member.url)

    async def open(
        self, telemetry: Telemetry, catch_up: Callable[[], Awaitable[None]], look: Callable[[str], Awaitable[None]]
    ) -> None:
        """Answer the others from now on."""
        instance = secrets.token_hex(8)
        self.place.folder.joinpath(f"worker-{self.place.index}").unlink(missing_ok=True)

        def told() -> Told:
            return Told(instance, telemetry.snapshot(), telemetry.status())

        if self.place.admin is not None:
            self.siblings.begin(told)
        self._door = Door(
            told=told,
            recent=telemetry.recent.told,
            events=telemetry.events,
            catch_up=catch_up,
            look=look,
        )
        await self._door.open(self.place.door(self.place.index))

    async def close(self) -> None:
        self.siblings.close()
        if self._door is not None:
            await self._door.close()


def ready() -> None:
    """Tell the supervisor that requests are accepted."""
    sys.stdout.write(READY.decode())
    sys.stdout.flush()


async def orphaned() -> None:
    """Return when the supervisor is gone."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
