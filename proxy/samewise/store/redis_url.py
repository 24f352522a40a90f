"""The forms of a Redis URL, and a client for each, every one of them bounded in time.

    redis://[user:password@]host[:port][/db]        rediss://...        unix:///path?db=0
    redis+sentinel://[user:password@]host:port,host:port/service[/db]
    redis+cluster://[user:password@]host:port,host:port

Options: `ssl_*` (as redis-py names them), `db`, `username`, `password`, `max_connections`; of Sentinel
`sentinel_username`, `sentinel_password`; of Sentinel and Cluster `ssl=true`. What a URL says about
timeouts, retries and protocol is ignored: those are `[store] timeout`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
CONNECTIONS = 16
_CONNECT = 1.0

_IGNORED = frozenset(
    {"socket_timeout", "socket_connect_timeout", "timeout", "retry_on_timeout", "health_check_interval", "protocol"}
    | {"decode_responses", "socket_keepalive", "client_name", "encoding"}
)
_NUMBERS = frozenset({"db", "max_connections"})
_FLAGS = frozenset({"ssl", "ssl_check_hostname"})
_TEXTS = frozenset(
    {"username", "password", "sentinel_username", "sentinel_password"}
    | {"ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"}
)


class Client(Protocol):
    """As much of redis-py as the store uses; single server, Sentinel and Cluster alike."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...

    def scan_iter(self, match: str, count: int) -> Any: ...

    async def aclose(self) -> None: ...


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A Redis as a URL describes it."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    connections: int = CONNECTIONS
    options: dict[str, Any] = {}
    sentinel: dict[str, Any] = {}

    def place(self) -> str:
        """Where it is, without a password; for logs."""
        return self.path or ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse(url: str) -> Target:
    """Raises ValueError with a line that says what is wrong and never shows a password."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {parts.scheme!r}; use {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    options = _options(parts.query)
    connections = options.pop("max_connections", CONNECTIONS)
    if connections < 1:
        raise ValueError("max_connections must be at least 1")
    sentinel = {name[9:]: options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    login, _, places = parts.netloc.rpartition("@")
    if login:
        user, _, password = login.partition(":")
        options |= {name: unquote(text) for name, text in (("username", user), ("password", password)) if text}
    path = [unquote(part) for part in parts.path.split("/") if part]
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("unix:// needs the path of a socket, as in unix:///run/redis.sock")
        return Target(scheme="unix", path=unquote(parts.path), connections=connections, options=options)
    hosts = tuple(_host(place, 26379 if "sentinel" in parts.scheme else 6379) for place in places.split(","))
    if "+" not in parts.scheme and len(hosts) > 1:
        raise ValueError(f"{parts.scheme}:// takes one host; use redis+cluster:// or redis+sentinel:// for several")
    service = ""
    if parts.scheme == "redis+sentinel":
        if not path:
            raise ValueError("redis+sentinel:// needs the service's name, as in redis+sentinel://host:26379/mymaster")
        service = path.pop(0)
    _database(parts, path, options)
    return Target(
        scheme=parts.scheme, hosts=hosts, service=service, connections=connections, options=options, sentinel=sentinel
    )


def connect(target: Target, timeout: float) -> tuple[Client, Sequence[Client]]:
    """A client that has not connected yet, and others that it asks on its way; close all of them.

    No command takes longer than connecting plus `timeout` seconds, which bounds each reply.
    Connecting may take a second even where `timeout` is less: the store gives up on its caller's
    behalf earlier, and the connection is there for the next.
    """
    settings: dict[str, Any] = {
        **target.options,
        "socket_timeout": timeout,
        "socket_connect_timeout": max(timeout, _CONNECT),
        "socket_keepalive": True,
        "protocol": 2,
    }
    never = Retry(NoBackoff(), 0)
    match target.scheme:
        case "redis+cluster":
            nodes = [ClusterNode(host, port) for host, port in target.hosts]
            once = Retry(NoBackoff(), 1)
            cluster = RedisCluster(startup_nodes=nodes, retry=once, max_connections=target.connections, **settings)
            return cast("Client", cluster), ()
        case "redis+sentinel":
            bounds = {"socket_timeout": timeout, "socket_connect_timeout": max(timeout, _CONNECT), "protocol": 2}
            watch: Any = Sentinel(  # type: ignore[no-untyped-call]
                target.hosts, sentinel_kwargs=bounds | target.sentinel, retry=never, **settings
            )
            return cast("Client", watch.master_for(target.service)), cast("Sequence[Client]", watch.sentinels)
        case "unix":
            kind: Any = {"connection_class": UnixDomainSocketConnection, "path": target.path}
            settings.pop("socket_keepalive")
        case "rediss":
            kind = {"connection_class": SSLConnection}
        case _:
            kind = {}
    if target.hosts:
        kind |= {"host": target.hosts[0][0], "port": target.hosts[0][1]}
    settings.pop("ssl", None)
    pool = ConnectionPool(max_connections=target.connections, retry=never, **kind, **settings)
    return cast("Client", Redis.from_pool(pool)), ()


def listener(target: Target, attempt: int = 0) -> Redis:
    """A client of its own for pub/sub, which waits for as long as nothing is said.

    Any node of a Cluster will do: each `attempt` goes to the next.
    """
    settings: dict[str, Any] = {**target.options, "socket_connect_timeout": _CONNECT, "socket_keepalive": True}
    settings |= {"protocol": 2, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    if target.scheme == "redis+sentinel":
        bounds = {"socket_timeout": _CONNECT, "socket_connect_timeout": _CONNECT, "protocol": 2}
        watch: Any = Sentinel(target.hosts, sentinel_kwargs=bounds | target.sentinel, **settings)  # type: ignore[no-untyped-call]
        return cast("Redis", watch.master_for(target.service))
    if target.scheme == "unix":
        settings.pop("socket_keepalive")
        return Redis(unix_socket_path=target.path, **settings)
    host, port = target.hosts[attempt % len(target.hosts)]
    return Redis(host=host, port=port, ssl=settings.pop("ssl", target.scheme == "rediss"), **settings)


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, (value, *_) in parse_qs(query, keep_blank_values=True).items():
        if name in _NUMBERS:
            if not value.isdecimal():
                raise ValueError(f"{name} must be a whole number")
            options[name] = int(value)
        elif name in _FLAGS:
            options[name] = value.lower() in ("1", "true", "yes", "on")
        elif name in _TEXTS:
            options[name] = value
        elif name not in _IGNORED:
            raise ValueError(f"unknown option {name!r}")
    return options


def _host(place: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        return parts.hostname or "localhost", parts.port or port
    except ValueError as error:
        raise ValueError(f"{place!r} is not HOST:PORT") from error


def _database(parts: SplitResult, path: list[str], options: dict[str, Any]) -> None:
    if not path:
        return
    if parts.scheme == "redis+cluster":
        raise ValueError("redis+cluster:// has no databases; leave the path out")
    if len(path) > 1 or not path[0].isdecimal():
        raise ValueError(f"{'/'.join(path)!r} is not the number of a database")
    options.setdefault("db", int(path[0]))
