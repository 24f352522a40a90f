"""Everything connected and listening, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version

from aiohttp import web

from samewise.assembly.house import House, build_house
from samewise.assembly.parts import SystemClock, bind, open_engine, open_stores
from samewise.http import server
from samewise.pipeline.flight import Flights
from samewise.ports import Member
from samewise.settings import Settings, flat
from samewise.telemetry import build, sources
from samewise.telemetry.log import Log
from samewise.telemetry.together import Together
from samewise.workers.member import Worker

TELEMETRY_GRACE = 1.0
"""Seconds that a collector may take at the end to get what is left."""

CUT = 0.1
"""Seconds that handlers get to see that they are cut off; none at all would be no limit."""


class Service:
    """What runs: the addresses it is at, and how it ends."""

    def __init__(self, *, url: str, admin_url: str, drain: Callable[[float, asyncio.Event], Awaitable[None]]) -> None:
        self.url = url
        self.admin_url = admin_url
        self.drain = drain


@contextlib.asynccontextmanager
async def running(settings: Settings, worker: Worker | None = None) -> AsyncIterator[Service]:
    """Everything, connected and listening. Raises SettingsError where a setting can't be used here.

    A `worker` shares ports, journal and leases with others, and only one of them has the admin port.
    """

    clock = SystemClock()
    log = Log(logging.getLogger("samewise"))
    admin_socket: socket.socket | None
    if worker is None:
        data_socket = bind(settings.server.host, settings.server.port, "[server] port", shared=False)
        admin_socket = bind(settings.admin.host, settings.admin.port, "[admin] port", shared=False)
    else:
        data_socket, admin_socket = worker.sockets()
    telemetry = build(
        clock=clock,
        version=version("samewise"),
        otlp_endpoint=settings.telemetry.otlp_endpoint,
        sources=[
            sources.stores(lambda: stores.store.status()),
            sources.fetches(lambda: house.flights.waiting),
            sources.upstreams(lambda: engine.members()),
            sources.levels(settings.verify.target, settings.verify.floor),
        ],
        log=log,
    )
    stores = await open_stores(settings, clock, telemetry)
    if worker is not None:
        stores = await worker.sharing(stores)

    def on_change(member: Member) -> None:
        house.control.members_changed()
        if worker is not None:
            worker.looked(member)

    engine = open_engine(settings, clock, on_change)
    sight = Together(telemetry, worker.siblings if worker is not None else None)
    house = build_house(settings, clock=clock, stores=stores, engine=engine, telemetry=telemetry, sight=sight)
    if worker is None:
        log.info("settings", **flat(settings))

    protocols = server.make_server(house.data.handle, house.hot, patience=settings.server.patience)
    runner = web.AppRunner(house.admin.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(functools.partial(telemetry.close, min(TELEMETRY_GRACE, settings.server.drain)))
        stack.push_async_callback(stores.close)
        stack.push_async_callback(engine.close)
        await engine.start()
        for task in house.background:
            task.start()
            stack.push_async_callback(task.close)
        await house.control.start({name: profile.values for name, profile in settings.sampling.profiles.items()})
        stack.push_async_callback(house.control.close)
        if worker is not None:
            stack.push_async_callback(worker.close)
            await worker.open(telemetry, house.control.catch_up, engine.refresh)
        if admin_socket is not None:
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            stack.callback((await server.listen_admin(runner, admin_socket)).close)
        listener = await server.listen(protocols, data_socket)
        admin_url = "" if admin_socket is None else server.url_of(admin_socket)
        drain = functools.partial(_drain, house, protocols, listener)
        yield Service(url=server.url_of(data_socket), admin_url=admin_url, drain=drain)


async def _drain(
    house: House, protocols: web.Server, listener: asyncio.Server, grace: float, hurry: asyncio.Event
) -> None:
    """Refuse what is new, let what runs end, within `grace` seconds or until `hurry`."""
    house.health.draining = True
    if house.hot is not None:
        house.hot.enabled = False
    listener.close()
    ending = asyncio.create_task(_end(protocols, house.flights, grace))
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    for task in (ending, hurrying):
        task.cancel()
    await protocols.shutdown(CUT)


async def _end(protocols: web.Server, flights: Flights, grace: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            protocols.pre_shutdown()
            await protocols.shutdown(grace)
            await flights.drain()
