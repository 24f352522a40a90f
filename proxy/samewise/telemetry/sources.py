"""Gauges that are asked for when they are read: stores, fetches and upstreams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from samewise.ports import Member, StoreStatus
from samewise.telemetry.snapshot import Number
from samewise.telemetry.tally import Source


def stores(status: Callable[[], Sequence[StoreStatus]]) -> Source:
    """Entries, bytes and availability by tier."""

    def numbers() -> Iterator[Number]:
        for row in status():
            tier = (("tier", row.name),)
            yield Number("samewise.store.available", tier, int(row.available))
            if row.entries is not None:
                yield Number("samewise.store.entries", tier, row.entries)
            if row.bytes is not None:
                yield Number("samewise.store.bytes", tier, row.bytes)

    return numbers


def fetches(waiting: Callable[[], int]) -> Source:
    """Who waits for them."""

    def numbers() -> Iterator[Number]:
        yield Number("samewise.waiting", (), waiting())

    return numbers


def upstreams(members: Callable[[], Sequence[Member]]) -> Source:
    """Health and load by upstream."""

    def numbers() -> Iterator[Number]:
        for member in members():
            upstream = (("upstream", member.url),)
            yield Number("samewise.upstream.healthy", upstream, int(member.healthy))
            yield Number("samewise.upstream.running", upstream, member.running)
            if member.environment is not None:
                environment = (*upstream, ("environment", member.environment.id))
                yield Number("samewise.upstream.environment", environment, 1)

    return numbers


def levels(target: float, floor: float) -> Source:
    """What consistency is measured against, so that rules need no thresholds of their own."""

    def numbers() -> Iterator[Number]:
        yield Number("samewise.consistency.target", (), target)
        yield Number("samewise.consistency.floor", (), floor)

    return numbers
