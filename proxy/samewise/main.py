"""The composition root: settings become objects, objects run. Nothing imports this."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import logging
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from samewise.cli import commands

if TYPE_CHECKING:
    import socket

    from aiohttp import web

    from samewise.core.acceptance import Report
    from samewise.core.entry import Entry
    from samewise.core.fingerprint import Environment
    from samewise.core.plan import Plan
    from samewise.core.tenants import Key
    from samewise.http.admin import AdminPort
    from samewise.http.auth import Gate
    from samewise.http.data import DataPort
    from samewise.http.guard import Guard
    from samewise.http.health import Health
    from samewise.http.hot import HotAnswers
    from samewise.pipeline.control import Control
    from samewise.pipeline.flight import Flights
    from samewise.pipeline.keywatch import KeyWatch
    from samewise.pipeline.promotion import Promoter
    from samewise.pipeline.receipts import Receipts
    from samewise.pipeline.reclaim import Reclaimer
    from samewise.pipeline.verify.book import Book
    from samewise.pipeline.verify.episodes import Episodes
    from samewise.pipeline.verify.recompute import Recomputer
    from samewise.pipeline.verify.verifier import Verifier
    from samewise.ports import Member, Store, Trace
    from samewise.settings import ApiKey, Settings
    from samewise.store.factory import Stores
    from samewise.store.receipt_log import ReceiptLog
    from samewise.telemetry.observer import Telemetry
    from samewise.telemetry.together import Together
    from samewise.upstream.pool import Pool
    from samewise.workers.member import Worker
    from samewise.workers.place import Place

_USAGE = 2
HOT_SHARE = 8
"""The share of the memory tier that hits ready to be sent again may take beside it, as a divisor."""

TRIAL_CONCURRENCY = (1, 8)
"""How many questions of the acceptance are under way at once, where it decides over an environment."""
CUT = 0.1
"""Seconds that handlers get to see that they are cut off; none at all would be no limit."""
HOT_ALONE = 4 << 20
"""The same, in bytes, where there is no memory tier."""
TELEMETRY_GRACE = 1.0
"""Seconds that a collector may take at the end to get what is left."""


class SystemClock:
    """The real time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


@click.group()
@click.version_option(package_name="samewise")
def main() -> None:
    """A caching deterministic inference proxy for OpenAI-compatible servers."""


for command in commands:
    main.add_command(command)


@main.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file (default: samewise.toml where there is one)."
)
@click.option("--upstream", "upstreams", multiple=True, metavar="URL", help="Base URL of a backend, with its /v1.")
@click.option("--host", help="Address of the data port.")
@click.option("--port", type=int, help="Data port.")
@click.option("--admin-host", help="Address of the admin port.")
@click.option("--admin-port", type=int, help="Admin port.")
@click.option("--store", metavar="URL", help="memory://, sqlite:///PATH, redis://HOST:PORT, ...")
@click.option("--workers", type=int, help="Processes that share the ports.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How log lines are written.")
def serve(config: Path | None, upstreams: tuple[str, ...], **flags: Any) -> None:
    """Answer requests until SIGTERM or Ctrl-C."""
    from samewise.settings import SettingsError, load

    names = {
        "host": "server.host",
        "port": "server.port",
        "admin_host": "admin.host",
        "admin_port": "admin.port",
        "store": "store.url",
        "workers": "server.workers",
        "log_format": "telemetry.log_format",
    }
    given: dict[str, Any] = {names[name]: value for name, value in flags.items()}
    if upstreams:
        given["upstreams"] = [{"url": url} for url in upstreams]
    try:
        settings = load(config, given)
        sys.exit(run(settings) if settings.server.workers == 1 else supervise(settings))
    except SettingsError as error:
        click.echo(f"samewise: {error}", err=True)
        sys.exit(_USAGE)


@main.command(hidden=True)
def worker() -> None:
    """One process of several; its supervisor says on stdin what it is to do."""
    from samewise.settings import SettingsError
    from samewise.workers.place import told

    place, settings = told(sys.stdin.buffer)
    try:
        sys.exit(run(settings, place))
    except SettingsError as error:
        click.echo(f"samewise: {error}", err=True)
        sys.exit(_USAGE)


def run(settings: Settings, place: Place | None = None) -> int:
    """Serve in this process until a signal; the exit code. Raises SettingsError. `place`: one of several workers."""
    import uvloop

    from samewise.telemetry import log

    stop_log = log.start(settings.telemetry.log_format, settings.telemetry.log_level)
    try:
        return uvloop.run(_serve(settings) if place is None else _work(settings, place))
    finally:
        stop_log()


def supervise(settings: Settings) -> int:
    """Serve in several processes until a signal; the exit code. Raises SettingsError."""
    from samewise.telemetry import log

    stop_log = log.start(settings.telemetry.log_format, settings.telemetry.log_level)
    try:
        return asyncio.run(_supervise(settings))
    finally:
        stop_log()


async def _supervise(settings: Settings) -> int:
    from samewise.http import server
    from samewise.settings import flat
    from samewise.telemetry.log import Log
    from samewise.workers.supervisor import Failed, Supervisor, private_folder, shared

    log = Log(logging.getLogger("samewise"))
    log.info("settings", **flat(settings))
    host, port = settings.server.host, settings.server.port
    data = [_bind(host, port, "[server] port", shared=True)]
    while len(data) < settings.server.workers:
        data.append(_bind(host, data[0].getsockname()[1], "[server] port", shared=True))
    admin = _bind(settings.admin.host, settings.admin.port, "[admin] port", shared=False)
    url, admin_url = server.url_of(data[0]), server.url_of(admin)
    folder = private_folder()
    supervisor = Supervisor(
        shared(settings, folder),
        command=(sys.executable, "-m", "samewise.main", "worker"),
        data=data,
        admin=admin,
        folder=folder,
        log=log,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    try:
        return await supervisor.run(lambda: _tell_ready(url, admin_url))
    except Failed as failed:
        return failed.code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell_ready(url: str, admin_url: str) -> None:
    click.echo(f"samewise: ready on {url} (admin {admin_url})")
    sys.stdout.flush()


async def _serve(settings: Settings) -> int:
    stop, hurry = _on_signals()
    async with running(settings) as service:
        _tell_ready(service.url, service.admin_url)
        await stop.wait()
        await service.drain(settings.server.drain, hurry)
    return 0


async def _work(settings: Settings, place: Place) -> int:
    from samewise.workers.member import Worker, orphaned, ready

    stop, hurry = _on_signals()
    async with running(settings, Worker(place)) as service:
        ready()
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(orphaned())}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await service.drain(settings.server.drain, hurry)
    return 0


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first SIGTERM or SIGINT, and by the next."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop, hurry


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
    from aiohttp import web

    from samewise.http import server
    from samewise.settings import flat
    from samewise.telemetry import build, sources
    from samewise.telemetry.log import Log
    from samewise.telemetry.together import Together

    clock = SystemClock()
    log = Log(logging.getLogger("samewise"))
    admin_socket: socket.socket | None
    if worker is None:
        log.info("settings", **flat(settings))
        data_socket = _bind(settings.server.host, settings.server.port, "[server] port", shared=False)
        admin_socket = _bind(settings.admin.host, settings.admin.port, "[admin] port", shared=False)
    else:
        data_socket, admin_socket = worker.sockets()
    telemetry = build(
        clock=clock,
        version=version("samewise"),
        otlp_endpoint=settings.telemetry.otlp_endpoint,
        sources=[
            sources.stores(lambda: stores.store.status()),
            sources.upstreams(lambda: engine.members()),
            sources.levels(settings.verify.target, settings.verify.floor),
        ],
        log=log,
    )
    stores = await _open_stores(settings, clock, telemetry)
    if worker is not None:
        stores = await worker.sharing(stores)

    def on_change(member: Member) -> None:
        house.control.members_changed()
        if worker is not None:
            worker.looked(member)

    engine = _open_engine(settings, clock, on_change)
    sight = Together(telemetry, worker.siblings if worker is not None else None)
    house = _build(settings, clock=clock, stores=stores, engine=engine, telemetry=telemetry, sight=sight)

    protocols = server.make_server(house.data.handle, house.hot)
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
            await web.SockSite(runner, admin_socket).start()
        listener = await server.listen(protocols, data_socket)
        admin_url = "" if admin_socket is None else server.url_of(admin_socket)
        drain = functools.partial(_drain, house, protocols, listener)
        yield Service(url=server.url_of(data_socket), admin_url=admin_url, drain=drain)


async def _open_stores(settings: Settings, clock: SystemClock, telemetry: Telemetry) -> Stores:
    from samewise.ports import Notice
    from samewise.settings import SettingsError
    from samewise.store.factory import open_store

    def tell(kind: str, attributes: Mapping[str, str]) -> None:
        telemetry.notice(Notice(kind=kind, attributes=dict(attributes)))

    store = settings.store
    try:
        return await open_store(
            store.url,
            memory_bytes=store.memory,
            max_entry=store.max_entry,
            timeout=store.timeout,
            secrets=tuple(filter(None, (store.secret, *store.old_secrets))),
            namespace=store.namespace or "default",
            clock=clock,
            on_notice=tell,
        )
    except ValueError as error:
        raise SettingsError("[store] url", str(error)) from None


def _open_engine(settings: Settings, clock: SystemClock, on_change: Callable[[Member], None]) -> Pool:
    from samewise.settings import SettingsError
    from samewise.upstream.affinity import by_name
    from samewise.upstream.factory import open_upstreams
    from samewise.upstream.options import Timeouts, UpstreamOptions

    options = [
        UpstreamOptions(
            url=upstream.url,
            api_key=upstream.api_key,
            environment=upstream.environment,
            probe=settings.environments.probe,
            resolve=upstream.resolve,
        )
        for upstream in settings.upstreams
    ]
    limits = settings.timeouts
    timeouts = Timeouts(connect=limits.connect, first_byte=limits.first_byte, idle=limits.idle, total=limits.total)
    try:
        routing = settings.routing
        return open_upstreams(
            options,
            timeouts,
            settings.environments.poll,
            clock,
            on_change,
            strategy=by_name(routing.strategy, clock, routing.session_header),
            hedge=routing.hedge,
        )
    except ValueError as error:
        raise SettingsError("[[upstreams]] url", str(error)) from None


class House(NamedTuple):
    """The rooms that the doors and the end of the program need."""

    control: Control
    flights: Flights
    health: Health
    data: DataPort
    admin: AdminPort
    hot: HotAnswers | None
    background: tuple[Background, ...] = ()


class Background(Protocol):
    """Works beside the requests, from `start` to `close`."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


def _build(
    settings: Settings, *, clock: SystemClock, stores: Stores, engine: Pool, telemetry: Telemetry, sight: Together
) -> House:
    from samewise.core.families.registry import BY_NAME, BY_PATH
    from samewise.http import capacity
    from samewise.http.admin import AdminPort
    from samewise.http.data import DataPort
    from samewise.http.doctor import DoctorRoutes
    from samewise.http.health import Health
    from samewise.http.keys import KeyRoutes
    from samewise.http.page import OPEN_PATHS, Page
    from samewise.http.receipts import ReceiptRoutes
    from samewise.http.transfer import TransferRoutes
    from samewise.http.verification import VerifyRoutes
    from samewise.pipeline.answer import Answerer
    from samewise.pipeline.control import Control
    from samewise.pipeline.doctor import Doctor
    from samewise.pipeline.fetch import Fetcher, Limits
    from samewise.pipeline.fleet import Fleet
    from samewise.pipeline.flight import Flights
    from samewise.pipeline.lead import Leader
    from samewise.pipeline.nearest import Neighbours
    from samewise.pipeline.operations import Operations
    from samewise.pipeline.profiles import Profiles
    from samewise.pipeline.resolve import Resolver
    from samewise.pipeline.rollout import Rollout
    from samewise.pipeline.transfer import Transfer
    from samewise.settings import masked

    store, mode = stores.store, settings.cache.mode
    flights = Flights(settings.store.max_entry)
    control = Control(
        journal=stores.journal,
        store=store,
        flights=flights,
        profiles=Profiles({name: profile.match for name, profile in settings.sampling.profiles.items()}),
        rollout=Rollout(engine.members, settings.environments.rollout),
        fleet=Fleet(engine),
        observer=telemetry,
        clock=clock,
        unseeded=settings.cache.unseeded,
        assume_defaults=settings.cache.unknown_defaults == "assume",
        on_invalidation=lambda event: local.due(event),
    )
    local, shared = _reclaimers(clock, stores, control, telemetry)
    promoter = _promoter(settings, clock, engine, control)
    fetcher = Fetcher(
        engine=engine,
        store=store,
        clock=clock,
        limits=Limits(
            ttl=settings.store.ttl, max_ttl=settings.store.max_ttl, max_entry=settings.store.max_entry, mode=mode
        ),
        ended=control.ended,
        paused=control.withheld.pauses,
    )
    verification = _verification(settings, control, clock=clock, stores=stores, engine=engine, telemetry=telemetry)
    fetcher.verification = verification.verifier
    leader = (
        Leader(leases=stores.leases, fetcher=fetcher, store=store, clock=clock, ended=control.may_have_ended)
        if stores.leases is not None
        else None
    )
    neighbours = Neighbours(store=store, clock=clock, ended=control.ended)
    resolver = Resolver(
        store=store,
        fetcher=fetcher,
        flights=flights,
        control=control,
        clock=clock,
        mode=mode,
        on_hit=verification.on_hit,
        on_held=verification.verifier.on_held,
        nearest=neighbours.refused,
        leader=leader,
    )
    receipts = _receipts(settings, clock)
    answerer = Answerer(
        control=control,
        resolver=resolver,
        clock=clock,
        canary=settings.environments.canary,
        receipts=None if receipts is None else receipts.issuing,
    )
    health = Health(store=store, engine=engine, alone=mode == "frozen")
    request_ids = _request_ids()
    hot = _hot(settings, stores, control, clock=clock, request_ids=request_ids, on_hit=verification.on_hit)
    keys = _watch_keys(settings, control, telemetry)
    gate = _gate(settings, clock, control)
    data = DataPort(
        families=BY_PATH,
        answerer=answerer,
        engine=engine,
        gate=gate,
        health=health,
        observer=telemetry,
        clock=clock,
        request_ids=request_ids,
        max_body=settings.server.max_body,
        max_requests=capacity.requests(settings.server.max_requests, capacity.raise_file_limit()),
        ping=settings.server.ping,
        hot=hot,
    )
    behind = shared.due if shared is not None else local.due
    doctor = Doctor(
        engine=engine,
        examine=stores.examine,
        followed=control.rollout,
        clock=clock,
        config=masked(settings),
        version=version("samewise"),
    )
    operations = Operations(control=control, store=store, engine=engine, clock=clock, reclaim=behind)
    admin = AdminPort(
        operations=operations,
        answerer=answerer,
        neighbours=neighbours,
        families=BY_NAME.get,
        sight=sight,
        health=health,
        guard=_guard(settings, clock, telemetry),
        gate=gate,
        config=masked(settings),
        prometheus=settings.telemetry.prometheus,
        consistency=verification.episodes.describe,
        open_paths=OPEN_PATHS,
        more=(
            Page(telemetry.recent.told),
            DoctorRoutes(doctor),
            KeyRoutes(control.keyring, operations.revoke_key),
            TransferRoutes(
                Transfer(control=control, store=store, engine=engine, clock=clock, version=version("samewise"))
            ),
            VerifyRoutes(verification.verifier, verification.book, operations),
            ReceiptRoutes(None if receipts is None else receipts.log, operations, verification.recomputer.run),
        ),
    )
    works = (receipts and receipts.log, local, shared, promoter, keys, verification.verifier)
    background = tuple(each for each in works if each is not None)
    return House(control, flights, health, data, admin, hot, background)


def _reclaimers(
    clock: SystemClock, stores: Stores, control: Control, telemetry: Telemetry
) -> tuple[Reclaimer, Reclaimer | None]:
    """One for what every process has of its own, one for the store behind, which only one of many need sweep."""
    from samewise.pipeline.reclaim import Reclaimer

    def of(store: Store, tier: str) -> Reclaimer:
        ended_by = control.invalidations.ended_by
        return Reclaimer(store=store, tier=tier, ended_by=ended_by, observer=telemetry, clock=clock)

    if stores.memory is None:
        return of(stores.store, "store"), None
    return of(stores.memory, "memory"), of(stores.store, "store") if stores.store is not stores.memory else None


def _hot(
    settings: Settings,
    stores: Stores,
    control: Control,
    *,
    clock: SystemClock,
    request_ids: Callable[[], str],
    on_hit: Callable[[Entry, Plan, Trace | None], None] | None,
) -> HotAnswers | None:
    from samewise.http.hot import HotAnswers

    if settings.cache.mode not in {"on", "read-only", "frozen"} or settings.receipts.enabled:
        return None
    return HotAnswers(
        peek=stores.memory.peek if stores.memory is not None else None,
        look=stores.store.get if stores.memory is None else None,
        generation=lambda: control.generation,
        clock=clock,
        request_ids=request_ids,
        on_hit=on_hit,
        limit=settings.store.memory // HOT_SHARE if stores.memory is not None else HOT_ALONE,
    )


class Verification(NamedTuple):
    """What recomputes, what it wrote down, and what it comes to."""

    verifier: Verifier
    book: Book
    episodes: Episodes
    recomputer: Recomputer
    on_hit: Callable[[Entry, Plan, Trace | None], None] | None


def _verification(
    settings: Settings, control: Control, *, clock: SystemClock, stores: Stores, engine: Pool, telemetry: Telemetry
) -> Verification:
    from samewise.pipeline.verify.acts import Acts
    from samewise.pipeline.verify.book import Book
    from samewise.pipeline.verify.consistency import Level
    from samewise.pipeline.verify.episodes import Episodes
    from samewise.pipeline.verify.judge import Judge
    from samewise.pipeline.verify.recompute import Recomputer
    from samewise.pipeline.verify.room import Room
    from samewise.pipeline.verify.verifier import Policy, Verifier
    from samewise.upstream.hook import Hook

    wanted, who = settings.verify, f"proxy-{secrets.token_hex(4)}"
    recomputer = Recomputer(
        engine,
        clock,
        salts=control.salt,
        fresh=functools.partial(secrets.token_hex, 16),
        timeout=min(settings.timeouts.total, settings.timeouts.first_byte),
    )
    full = wanted.outputs == "full"
    book = Book(stores.records, clock, keep=wanted.keep, full=full, ids=functools.partial(secrets.token_hex, 8))
    episodes = Episodes(
        level=Level(target=wanted.target, floor=wanted.floor),
        on_floor=wanted.on_floor,
        control=control,
        engine=engine,
        book=book,
        observer=telemetry,
        clock=clock,
        who=who,
        hook=Hook(wanted.hook) if wanted.hook else None,
    )
    policy = Policy(
        rate=wanted.rate,
        concurrency=wanted.concurrency,
        action=wanted.action,
        warm=wanted.warm,
        each=wanted.each,
        queue=wanted.queue,
        release=wanted.release,
        agreements=settings.cache.agreements,
    )
    verifier = Verifier(
        policy=policy,
        judge=Judge(recomputer, near_tie_nats=wanted.near_tie_nats),
        room=Room(engine, recomputer, clock),
        acts=Acts(control=control, store=stores.store, clock=clock, who=who),
        book=book,
        episodes=episodes,
        withheld=control.withheld,
        store=stores.store,
        observer=telemetry,
        clock=clock,
    )
    return Verification(verifier, book, episodes, recomputer, verifier.on_hit if wanted.rate > 0 else None)


class Signed(NamedTuple):
    """What issues receipts, and where they are."""

    issuing: Receipts
    log: ReceiptLog


def _receipts(settings: Settings, clock: SystemClock) -> Signed | None:
    """None where they are off. Raises SettingsError where they can't be signed or written."""
    from samewise.pipeline.receipts import Receipts
    from samewise.pipeline.signing import signer
    from samewise.settings import SettingsError
    from samewise.store.receipt_log import ReceiptLog

    wanted = settings.receipts
    if not wanted.enabled:
        return None
    if not wanted.secret:
        raise SettingsError("[receipts] secret", "is needed where receipts are enabled: any text that only you know")
    try:
        by = signer(wanted.secret)
    except ValueError as error:
        raise SettingsError("[receipts] secret", str(error)) from None
    try:
        log = ReceiptLog(Path(wanted.path), sign=by.sign, verify=by.verify)
    except OSError as error:
        why = f"{wanted.path} can't be written ({error.strerror or error}); name a file that can"
        raise SettingsError("[receipts] path", why) from None
    return Signed(Receipts(log, clock, functools.partial(secrets.token_hex, 16)), log)


def _promoter(settings: Settings, clock: SystemClock, engine: Pool, control: Control) -> Promoter:
    from samewise.core import prompts
    from samewise.pipeline.acceptance import Runner, Target
    from samewise.pipeline.promotion import Promoter

    wanted = settings.environments

    async def attempt(environment: Environment, model: str) -> Report:
        having = [each.url for each in engine.members() if each.environment and each.environment.id == environment.id]
        targets = [Target(model=model, environment=environment.id, member=url) for url in having]
        runner = Runner(engine, salt=functools.partial(secrets.token_hex, 16))
        return await runner.run(targets, prompts.shipped(), repeat=wanted.trial, concurrencies=TRIAL_CONCURRENCY)

    who = f"proxy-{secrets.token_hex(4)}"
    return Promoter(control=control, clock=clock, policy=wanted.rollout, attempt=attempt, who=who)


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


def _gate(settings: Settings, clock: SystemClock, control: Control) -> Gate:
    from samewise.http.auth import Gate
    from samewise.http.limits import Rates

    replaced = all(upstream.api_key for upstream in settings.upstreams)
    return Gate(control.keyring, settings.auth.forward, replaced=replaced, rates=Rates(clock))


def _guard(settings: Settings, clock: SystemClock, telemetry: Telemetry) -> Guard:
    from samewise.http.guard import Guard
    from samewise.http.limits import Rates
    from samewise.ports import Notice

    def tell(kind: str, detail: dict[str, str]) -> None:
        telemetry.notice(Notice(kind=kind, detail=detail))

    return Guard(settings.admin.token, rates=Rates(clock), tell=tell)


def _keys(keys: Iterable[ApiKey]) -> list[Key]:
    from samewise.core.tenants import Key

    return [
        Key(tenant=key.tenant, sha256=key.sha256, models=key.models, share=key.share, per_minute=key.per_minute)
        for key in keys
    ]


def _watch_keys(settings: Settings, control: Control, telemetry: Telemetry) -> KeyWatch | None:
    """Put the keys in force, and watch the file that has more of them. Raises SettingsError."""
    from samewise.pipeline.keywatch import KeyWatch
    from samewise.settings import SettingsError, load_keys, stamp

    auth, seen = settings.auth, stamp(settings.auth.file)

    def read() -> list[Key]:
        try:
            return _keys((*auth.keys, *load_keys(auth.file)))
        except SettingsError as error:
            raise ValueError(str(error)) from None

    if not auth.file:
        control.use_keys(_keys(auth.keys))
    else:
        control.use_keys(_keys((*auth.keys, *load_keys(auth.file))), guarded=True)
    if control.keyring.guarded and auth.salt:
        known = settings.store.secret or "\n".join(sorted(key.sha256 for key in control.keyring.configured))
        control.salts = hashlib.sha256(b"samewise salts\n" + known.encode()).digest()
    if not auth.file:
        return None
    use = functools.partial(control.use_keys, guarded=True)
    return KeyWatch(stamp=lambda: stamp(auth.file), seen=seen, read=read, use=use, observer=telemetry)


def _bind(host: str, port: int, setting: str, *, shared: bool) -> socket.socket:
    from samewise.http import server
    from samewise.settings import SettingsError

    try:
        return server.bind(host, port, shared=shared)
    except OSError as error:
        problem = f"{host}:{port} can't be bound ({error.strerror or error}); choose another"
        raise SettingsError(setting, problem) from None


def _request_ids() -> Callable[[], str]:
    """Ids that no other process or request has."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count(1)
    return lambda: f"{prefix}-{next(numbers):x}"


if __name__ == "__main__":
    main()
