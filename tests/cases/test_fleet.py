"""Upstreams that come, drain and go while the proxy runs."""

from __future__ import annotations

from pathlib import Path

from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0, until


def asked(number: int) -> dict[str, object]:
    return {**B0, "seed": number}


async def test_an_added_upstream_takes_its_share_and_a_drained_one_none(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings={"routing.strategy": "round-robin"})
    async with MockBackend() as other:
        told = await proxy.admin("POST", "/upstreams/add", {"url": other.url})
        assert {item["url"] for item in told["items"]} == {mb.url, other.url}
        for number in range(10):
            assert (await proxy.post(asked(number))).cache == "MISS"
        assert mb.count == other.count == 5
        await proxy.admin("POST", "/upstreams/drain", {"url": mb.url})
        for number in range(10, 20):
            assert (await proxy.post(asked(number))).cache == "MISS"
        assert mb.count == 5
        told = await proxy.admin("POST", "/upstreams/remove", {"url": mb.url})
        assert [item["url"] for item in told["items"]] == [other.url]
        await proxy.admin("POST", "/upstreams/add", {"url": mb.url})


async def test_every_proxy_on_the_store_hears_of_it_and_remembers(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path
) -> None:
    store = {"store.url": f"sqlite:///{tmp_path / 'shared.db'}"}
    first, second = await make_proxy(settings=store), await make_proxy(settings=store)
    async with MockBackend() as other:
        await first.admin("POST", "/upstreams/add", {"url": other.url})

        async def heard() -> bool:
            items = (await second.admin("GET", "/upstreams"))["items"]
            return {item["url"] for item in items} == {mb.url, other.url}

        await until(heard, within=2)
        await second.restart()
        assert await heard()


async def test_who_is_unknown_or_no_url_is_refused_by_name(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    unknown = await proxy.request(
        "POST", "/samewise/v1/upstreams/drain", body={"url": "http://127.0.0.1:1/v1"}, admin=True
    )
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "unknown_upstream")
    wrong = await proxy.request("POST", "/samewise/v1/upstreams/add", body={"url": "nowhere"}, admin=True)
    assert (wrong.status, wrong.json()["error"]["param"]) == (400, "url")
