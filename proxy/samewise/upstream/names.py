"""A name that stands for many upstreams: each address behind it is one, as the name service says now."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping

from yarl import URL

from samewise.upstream.options import UpstreamOptions

Resolve = Callable[[str], Awaitable[frozenset[str]]]
"""From a host name to its addresses; empty where there is none. Raises OSError where nobody can say."""


async def resolve(host: str) -> frozenset[str]:
    """All addresses of a name, by the system's resolver."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return frozenset()
        raise
    return frozenset(str(address[0]) for *_, address in found)


class Names:
    """Follows names every `poll` seconds. While nobody can say what a name means, what it meant stays."""

    def __init__(self, options: Mapping[str, UpstreamOptions], poll: float, ask: Resolve = resolve) -> None:
        """`options` by base URL: what an address of it is asked with. Raises ValueError for https, whose
        certificates name hosts, not addresses."""
        for url in options:
            if URL(url).scheme != "http":
                raise ValueError(f"{url}: resolve needs http, since a certificate names no address")
        self._options = options
        self._poll = poll
        self._ask = ask
        self._known: dict[str, frozenset[str]] = dict.fromkeys(options, frozenset())
        self._task: asyncio.Task[None] | None = None

    def like(self, url: str) -> UpstreamOptions | None:
        """How an address is asked: as the name that it belongs to."""
        for name, urls in self._known.items():
            if url in urls:
                return self._options[name]
        return None

    async def start(self, come: Callable[[str], Awaitable[object]], go: Callable[[str], object]) -> None:
        """Look once, then follow. `come` and `go` are told the base URLs of addresses that appear and vanish."""
        await self._look(come, go)
        if self._options:
            self._task = asyncio.create_task(self._follow(come, go))

    async def close(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self, come: Callable[[str], Awaitable[object]], go: Callable[[str], object]) -> None:
        while True:
            await asyncio.sleep(self._poll)
            await self._look(come, go)

    async def _look(self, come: Callable[[str], Awaitable[object]], go: Callable[[str], object]) -> None:
        for name in self._options:
            url = URL(name)
            try:
                addresses = await self._ask(url.host or "")
            except OSError:
                continue
            now = frozenset(str(url.with_host(address)).rstrip("/") for address in addresses)
            before, self._known[name] = self._known[name], now
            for gone in sorted(before - now):
                go(gone)
            await asyncio.gather(*(come(new) for new in sorted(now - before)))
