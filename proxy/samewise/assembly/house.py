"""The rooms put together: from stores and upstreams to the path of a request and the two ports."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple, Protocol

from samewise.assembly.doors import make_gate, make_guard, watch_keys
from samewise.assembly.parts import SystemClock, new_request_ids
from samewise.assembly.proof import make_promoter, make_receipts, make_verification
from samewise.core.entry import Entry
from samewise.core.families.registry import BY_NAME, BY_PATH
from samewise.core.plan import Plan
from samewise.http import capacity
from samewise.http.admin import AdminPort
from samewise.http.body import Bounds
from samewise.http.data import DataPort
from samewise.http.doctor import DoctorRoutes
from samewise.http.health import Health
from samewise.http.hot import HotAnswers
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
from samewise.pipeline.lane import Lane
from samewise.pipeline.lead import Leader
from samewise.pipeline.nearest import Neighbours
from samewise.pipeline.operations import Operations
from samewise.pipeline.profiles import Profiles
from samewise.pipeline.reclaim import Reclaimer
from samewise.pipeline.resolve import Resolver
from samewise.pipeline.rollout import Rollout
from samewise.pipeline.transfer import Transfer
from samewise.ports import Store, Trace
from samewise.settings import Settings, masked
from samewise.store.factory import Stores
from samewise.telemetry.observer import Telemetry
from samewise.telemetry.together import Together
from samewise.upstream.pool import Pool

HOT_SHARE = 8
"""The share of the memory tier that hits ready to be sent again may take beside it, as a divisor."""
HOT_ALONE = 4 << 20
"""Bytes that they may take where there is no memory tier."""


class Background(Protocol):
    """Works beside the requests, from `start` to `close`."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


class House(NamedTuple):
    """The rooms that the doors and the end of the program need."""

    control: Control
    flights: Flights
    health: Health
    data: DataPort
    admin: AdminPort
    hot: HotAnswers | None
    background: tuple[Background, ...] = ()


def build_house(
    settings: Settings, *, clock: SystemClock, stores: Stores, engine: Pool, telemetry: Telemetry, sight: Together
) -> House:
    """The whole inside of one process, on its stores and upstreams. Raises SettingsError."""
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
    promoter = make_promoter(settings, clock, engine, control)
    lane = Lane()
    fetcher = Fetcher(
        engine=engine,
        store=store,
        clock=clock,
        limits=Limits(
            ttl=settings.store.ttl, max_ttl=settings.store.max_ttl, max_entry=settings.store.max_entry, mode=mode
        ),
        ended=control.ended,
        lane=lane,
        paused=control.withheld.pauses,
    )
    verification = make_verification(settings, control, clock=clock, stores=stores, engine=engine, telemetry=telemetry)
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
    receipts = make_receipts(settings, clock)
    answerer = Answerer(
        control=control,
        resolver=resolver,
        clock=clock,
        canary=settings.environments.canary,
        receipts=None if receipts is None else receipts.issuing,
        lane=lane,
    )
    health = Health(store=store, engine=engine, alone=mode == "frozen")
    request_ids = new_request_ids()
    hot = _hot(settings, stores, control, clock=clock, request_ids=request_ids, on_hit=verification.on_hit)
    keys = watch_keys(settings, control, telemetry)
    gate = make_gate(settings, clock, control)
    data = DataPort(
        families=BY_PATH,
        answerer=answerer,
        engine=engine,
        gate=gate,
        health=health,
        observer=telemetry,
        clock=clock,
        request_ids=request_ids,
        bounds=Bounds(settings.server.max_body, settings.server.patience),
        lane=lane,
        max_requests=capacity.requests(settings.server.max_requests, capacity.raise_file_limit()),
        ping=settings.server.ping,
        hot=hot,
        content=settings.telemetry.content,
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
        prefixes=engine,
        families=BY_NAME.get,
        sight=sight,
        health=health,
        guard=make_guard(settings, clock, telemetry),
        gate=gate,
        config=masked(settings),
        prometheus=settings.telemetry.prometheus,
        consistency=verification.episodes.describe,
        open_paths=OPEN_PATHS,
        more=(
            Page(sight.recent),
            DoctorRoutes(doctor),
            KeyRoutes(control.keyring, operations.revoke_key),
            TransferRoutes(
                Transfer(control=control, store=store, engine=engine, clock=clock, version=version("samewise"))
            ),
            VerifyRoutes(verification.verifier, verification.book, operations),
            ReceiptRoutes(None if receipts is None else receipts.log, operations, verification.recomputer.run),
        ),
    )
    works = (lane, receipts and receipts.log, local, shared, promoter, keys, verification.verifier)
    background = tuple(each for each in works if each is not None)
    return House(control, flights, health, data, admin, hot, background)


def _reclaimers(
    clock: SystemClock, stores: Stores, control: Control, telemetry: Telemetry
) -> tuple[Reclaimer, Reclaimer | None]:
    """One for what every process has of its own, one for the store behind, which only one of many need sweep."""

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
