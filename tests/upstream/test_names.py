"""A name that stands for many upstreams."""

from __future__ import annotations

import asyncio

import pytest

from samewise.upstream.names import Names, resolve
from samewise.upstream.options import UpstreamOptions

NAME = "http://backends:8000/v1"


class NameService:
    """Says what it is told to, and counts."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = frozenset(addresses)
        self.down = False
        self.asked = asyncio.Condition()
        self.count = 0

    async def __call__(self, host: str) -> frozenset[str]:
        assert host == "backends"
        async with self.asked:
            self.count += 1
            self.asked.notify_all()
        if self.down:
            raise OSError("nobody can say")
        return self.addresses

    async def looked(self, more: int = 2) -> None:
        async with self.asked:
            wanted = self.count + more
            await self.asked.wait_for(lambda: self.count >= wanted)


class Fleet:
    def __init__(self) -> None:
        self.urls: set[str] = set()

    async def come(self, url: str) -> None:
        self.urls.add(url)

    def go(self, url: str) -> None:
        self.urls.remove(url)


async def test_each_address_is_an_upstream_and_comes_and_goes_with_its_name() -> None:
    service, fleet = NameService("10.0.0.1", "10.0.0.2"), Fleet()
    names = Names({NAME: UpstreamOptions(url=NAME, api_key="k")}, 0.01, service)
    await names.start(fleet.come, fleet.go)
    try:
        assert fleet.urls == {"http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1"}
        like = names.like("http://10.0.0.1:8000/v1")
        assert like is not None and like.api_key == "k"
        service.addresses = frozenset({"10.0.0.2", "fd00::3"})
        await service.looked()
        assert fleet.urls == {"http://10.0.0.2:8000/v1", "http://[fd00::3]:8000/v1"}
    finally:
        await names.close()


async def test_while_nobody_can_say_what_a_name_means_it_means_what_it_did() -> None:
    service, fleet = NameService("10.0.0.1"), Fleet()
    names = Names({NAME: UpstreamOptions(url=NAME)}, 0.01, service)
    await names.start(fleet.come, fleet.go)
    try:
        service.down = True
        await service.looked()
        assert fleet.urls == {"http://10.0.0.1:8000/v1"}
    finally:
        await names.close()


async def test_the_system_s_resolver_knows_this_machine() -> None:
    assert "127.0.0.1" in await resolve("localhost")


def test_a_name_behind_https_is_refused() -> None:
    with pytest.raises(ValueError, match="http"):
        Names({"https://b/v1": UpstreamOptions(url="https://b/v1")}, 1)
