"""The parts at the edge of the house: clock, sockets, stores and upstreams, as the settings ask for them."""

from __future__ import annotations

import itertools
import secrets
import socket
import time
from collections.abc import Callable, Mapping

from samewise.http import server
from samewise.ports import Member, Notice
from samewise.settings import Settings, SettingsError
from samewise.store.factory import Stores, open_store
from samewise.telemetry.observer import Telemetry
from samewise.upstream.affinity import by_name
from samewise.upstream.factory import open_upstreams
from samewise.upstream.options import Timeouts, UpstreamOptions
from samewise.upstream.pool import Pool


class SystemClock:
    """The real time."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


def bind(host: str, port: int, setting: str, *, shared: bool) -> socket.socket:
    """A bound socket. Raises SettingsError naming the setting, or the host beside it where that is what's wrong."""
    try:
        return server.bind(host, port, shared=shared)
    except socket.gaierror as error:
        problem = f"should be an address of this machine; {host} is none ({error.strerror})"
        raise SettingsError(setting.replace(" port", " host"), problem) from None
    except OSError as error:
        problem = f"{host}:{port} can't be bound ({error.strerror or error}); choose another"
        raise SettingsError(setting, problem) from None


def new_request_ids() -> Callable[[], str]:
    """Ids that no other process or request has."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count(1)
    return lambda: f"{prefix}-{next(numbers):x}"


async def open_stores(settings: Settings, clock: SystemClock, telemetry: Telemetry) -> Stores:
    """The stores that the settings name. Raises SettingsError."""

    def tell(kind: str, attributes: Mapping[str, str]) -> None:
        telemetry.notice(Notice(kind=kind, attributes=dict(attributes)))

    store = settings.store
    try:
        return await open_store(
            store.url,
            memory_bytes=store.memory,
            max_entry=store.max_entry,
            segment=store.segment,
            timeout=store.timeout,
            secrets=tuple(filter(None, (store.secret, *store.old_secrets))),
            namespace=store.namespace or "default",
            clock=clock,
            on_notice=tell,
        )
    except ValueError as error:
        raise SettingsError("[store] url", str(error)) from None


def open_engine(settings: Settings, clock: SystemClock, on_change: Callable[[Member], None]) -> Pool:
    """The upstreams that the settings name, not started yet. Raises SettingsError."""
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
