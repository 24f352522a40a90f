"""From what an operator says to an engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from samewise.core.address import base_url
from samewise.ports import Clock, Member
from samewise.upstream.client import Client
from samewise.upstream.member import Upstream
from samewise.upstream.names import Names
from samewise.upstream.options import Timeouts, UpstreamOptions
from samewise.upstream.pool import Pool
from samewise.upstream.sse import MAX_EVENT
from samewise.upstream.strategy import LeastLoaded, Strategy


def open_upstreams(
    options: Sequence[UpstreamOptions],
    timeouts: Timeouts,
    poll: float,
    clock: Clock,
    on_change: Callable[[Member], None] = lambda member: None,
    *,
    strategy: Strategy | None = None,
    hedge: float = 0.0,
    max_event: int = MAX_EVENT,
    salt: Callable[[], str] = lambda: secrets.token_hex(16),
) -> Pool:
    """The pool of these upstreams, not started yet. `poll` is in seconds.

    `on_change` is told, on the pool's loop, when an upstream's environment, health, models or draining
    changed; it must not wait. Raises ValueError where a URL is none or comes twice.
    """

    def make(one: UpstreamOptions) -> Upstream:
        client = Client(one, timeouts, max_event=max_event)
        return Upstream(one, client, poll=poll, clock=clock, salt=salt, on_change=on_change, on_restart=restarted)

    chooses = strategy or LeastLoaded()

    def restarted(url: str) -> None:
        if chooses.seen is not None:
            chooses.seen.forget(url)

    configured = {base_url(one.url): one for one in options}
    names = Names({url: one for url, one in configured.items() if one.resolve}, poll)

    def named(url: str) -> Upstream:
        """One that comes while the pool runs: as it is configured, as the name that it belongs to, or plain."""
        like = configured.get(url) or names.like(url)
        if like is None:
            like = UpstreamOptions(url=url, probe=options[0].probe if options else UpstreamOptions(url=url).probe)
        return make(msgspec.structs.replace(like, url=url))

    members = [make(one) for one in options if not one.resolve]
    return Pool(members, chooses, named, names=names, hedge=hedge)
