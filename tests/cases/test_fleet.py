"""Upstreams that come, drain and go while the proxy runs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import aiohttp
import msgspec
import pytest

from samewise.ports import ControlEvent
from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, soon, until


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

        await soon(heard)
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


async def test_a_second_upstream_is_asked_when_the_first_is_slow_to_begin(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    async with MockBackend() as other:
        proxy = await make_proxy(
            mb.url, other.url, settings={"routing.hedge": "50ms", "routing.strategy": "round-robin"}
        )
        stuck = Script(gate=asyncio.Event())
        mb.always(stuck)
        for number in range(4):
            assert (await proxy.post(asked(number))).status == 200
        assert other.count == 4
        assert (await proxy.post(asked(0))).cache == "HIT"

        async def given_up() -> bool:
            return mb.running == 0

        await until(given_up)
        assert mb.gone == mb.count > 0


async def test_an_answer_that_is_not_reproducible_is_never_asked_for_twice(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    async with MockBackend() as other:
        proxy = await make_proxy(
            mb.url, other.url, settings={"routing.hedge": "10ms", "routing.strategy": "round-robin"}
        )
        for backend in (mb, other):
            backend.always(Script(delay=0.1))
        unseeded = {**B0, "temperature": 1, "seed": None}
        for _ in range(4):
            assert (await proxy.post(unseeded)).cache == "BYPASS"
        assert mb.count + other.count == 4


def head(kind: str, body: bytes = b"", environment: str = "a" * 32) -> bytes:
    """The head of a 200 whose connection will end within its body."""
    fields = f"Content-Type: {kind}\r\nx-samewise-environment: {environment}\r\nContent-Length: 1000\r\n"
    return f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode() + body


DIES = {
    "a stream before its first event": (True, head("text/event-stream", b": soon\n\n")),
    "a body in its middle": (False, head("application/json", b'{"id": "x", ')),
}


@pytest.mark.parametrize(("stream", "wire"), DIES.values(), ids=DIES.keys())
async def test_an_answer_that_breaks_off_before_anything_was_given_on_comes_from_one_other(
    make_proxy: MakeProxy, mb: MockBackend, stream: bool, wire: bytes
) -> None:
    async with MockBackend() as other:
        proxy = await make_proxy(mb.url, other.url, settings={"routing.strategy": "round-robin"})
        mb.always(Script(wire=wire, end="eof"))
        for number in range(4):
            body = {**asked(number), "stream": stream}
            answer = await proxy.post(body)
            assert (answer.status, answer.cache, answer.text) == (200, "MISS", f"nonce {number + 1} end")
            assert (await proxy.post(body)).cache == "HIT"
            entry = await proxy.admin("GET", f"/entries/{answer.key}")
            assert entry["instance"] == "mock" and entry["environment"] == "a" * 32
        assert other.count == 4 and 0 < mb.count <= 4


@pytest.mark.parametrize(("stream", "wire"), DIES.values(), ids=DIES.keys())
async def test_no_third_is_asked_and_none_for_what_another_would_answer_differently(
    make_proxy: MakeProxy, mb: MockBackend, stream: bool, wire: bytes
) -> None:
    async with MockBackend() as second, MockBackend() as third:
        backends = (mb, second, third)
        proxy = await make_proxy(*[each.url for each in backends], settings={"routing.strategy": "round-robin"})
        for each in backends:
            each.always(Script(wire=wire, end="eof"))
        for body, calls in ((asked(1), 2), ({**B0, "temperature": 1, "seed": None}, 1)):
            before = sum(each.count for each in backends)
            with contextlib.suppress(aiohttp.ClientError):
                answer = await proxy.post({**body, "stream": stream})
                assert answer.status == 502 or (stream and '"error"' in answer.data()[-1])
            assert sum(each.count for each in backends) - before == calls


KILLERS = {
    "before the head": Script(wire=b"", end="eof", delay=1.2),
    "within the body": Script(wire=DIES["a body in its middle"][1], end="eof", delay=0.2),
}


@pytest.mark.parametrize("script", KILLERS.values(), ids=KILLERS.keys())
async def test_hedged_or_not_a_question_that_kills_who_takes_it_meets_two(
    make_proxy: MakeProxy, mb: MockBackend, script: Script
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        backends = [mb, *[await stack.enter_async_context(MockBackend()) for _ in range(4)]]
        proxy = await make_proxy(*[each.url for each in backends], settings={"routing.hedge": "50ms"})
        for each in backends:
            each.always(script)
        assert (await proxy.post(asked(1))).status == 502
        assert sorted(each.count for each in backends) == [0, 0, 0, 1, 1]


async def test_what_was_given_on_is_never_continued_by_another(make_proxy: MakeProxy, mb: MockBackend) -> None:
    event = b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    async with MockBackend() as other:
        proxy = await make_proxy(mb.url, other.url, settings={"routing.strategy": "round-robin"})
        for each in (mb, other):
            each.always(Script(wire=head("text/event-stream", event), end="eof"))
        with contextlib.suppress(aiohttp.ClientError):
            answer = await proxy.post({**asked(1), "stream": True})
            assert '"error"' in answer.data()[-1]
        assert mb.count + other.count == 1


BAD = [f"http://127.0.0.1:1/v1{more}" for more in ("?x=1", "#x")]
BAD += ["http://127.0.0.1:99999/v1", "http:///v1", "http://u:pa55word@127.0.0.1:1/v1", "http://h h/v1", ""]


async def test_what_is_no_base_url_or_names_a_user_never_reaches_the_journal(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path
) -> None:
    proxy = await make_proxy(settings={"store.url": f"sqlite:///{tmp_path / 'shared.db'}"})
    for url in BAD:
        for action in ("add", "drain", "remove"):
            got = await proxy.request("POST", f"/samewise/v1/upstreams/{action}", body={"url": url}, admin=True)
            assert (got.status, got.json()["error"]["param"]) == (400, "url"), url
            assert b"pa55word" not in got.body
    with sqlite3.connect(tmp_path / "shared.db") as file:
        assert not [event for (event,) in file.execute("SELECT event FROM journal") if b"upstream" in event]
    await proxy.restart()
    assert [item["url"] for item in (await proxy.admin("GET", "/upstreams"))["items"]] == [mb.url]
    assert "pa55word" not in "".join(proxy.log)


async def test_events_that_cannot_be_applied_end_neither_the_start_nor_the_following(
    make_proxy: MakeProxy, mb: MockBackend, tmp_path: Path
) -> None:
    path = tmp_path / "shared.db"
    first, second = [await make_proxy(settings={"store.url": f"sqlite:///{path}"}) for _ in range(2)]
    assert (await first.post(B0)).cache == "MISS"
    events = [msgspec.msgpack.encode(ControlEvent(kind="upstream-add", subject=url)) for url in BAD] + [b"\xc1 nothing"]
    with sqlite3.connect(path) as file:
        file.executemany("INSERT INTO journal(event) VALUES (?)", [(event,) for event in events])

    async def told() -> bool:
        counts = [await proxy.metric("samewise_events_total", kind="control-skipped") for proxy in (first, second)]
        return counts == [len(events)] * 2

    await until(told)
    await first.admin("POST", "/invalidate", {"scope": "all"})

    async def ended() -> bool:
        return await second.metric("samewise_invalidations_total", scope="all") == 1

    await until(ended)
    assert (await second.post(B0)).cache == "MISS"
    await second.restart()
    assert [item["url"] for item in (await second.admin("GET", "/upstreams"))["items"]] == [mb.url]
    assert (await second.post(B0)).cache == "HIT"
    ready = await second.request("GET", "/readyz")
    metrics = await second.request("GET", "/metrics", admin=True)
    for seen in ("".join(first.log + second.log), ready.body.decode(), metrics.body.decode()):
        assert "pa55word" not in seen
