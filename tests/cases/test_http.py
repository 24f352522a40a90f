"""HTTP as it comes: codings, headers, framing, connections, errors and stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import fresh
from tests.support.mock_backend import DONE, MockBackend, Script, sse
from tests.support.patience import ENOUGH
from tests.support.proxy import CHAT, Proxy, until
from tests.support.wire import Wire, chunked, request

CODINGS = ["gzip", "deflate", "br", "zstd"]


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


def plain(heard_body: bytes, coding: str | None) -> bytes:
    match coding:
        case "gzip":
            return zlib.decompress(heard_body, 31)
        case "deflate":
            return zlib.decompress(heard_body)
        case _:
            return heard_body


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_upstream_is_read_right_by_every_client(pair: Pair, coding: str) -> None:
    body = fresh()
    pair.mb.when(body["messages"][0]["content"], Script(encoding=coding))
    texts = set()
    for wanted in (["Accept-Encoding: identity"], ["Accept-Encoding: gzip"], []):
        async with Wire.to(pair.proxy.address) as wire:
            await wire.send(request(encoded(body), *wanted))
            heard = await wire.answer()
        assert heard.header("content-length") == str(len(heard.body))
        given = heard.header("content-encoding")
        assert given is None or given in "".join(wanted)
        texts.add(json.loads(plain(heard.body, given))["choices"][0]["message"]["content"])
    assert (len(texts), pair.mb.count) == (1, 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_stream_arrives_event_by_event(pair: Pair, coding: str) -> None:
    body = fresh(stream=True)
    heard = asyncio.Queue[None]()

    async def until_read(at: int) -> None:
        await heard.get()

    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": f"{at}"}, "finish_reason": None} for at in range(5)
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    pieces = [*(sse({**base, "choices": [choice]}) for choice in choices), DONE]
    pair.mb.once(Script(sse=pieces, encoding=coding, sent=until_read))
    first = []
    async with pair.proxy.stream(body, headers={"Accept-Encoding": "identity"}) as streaming:
        assert "content-encoding" not in streaming.headers
        async for data in streaming.data():
            first.append(data)
            heard.put_nowait(None)
    assert first[-1] == "[DONE]"
    again = await pair.proxy.post(body)
    assert (again.cache, again.data()) == ("HIT", first)


async def test_a_compressed_error_stays_readable(pair: Pair) -> None:
    error = zlib.compress(encoded({"error": {"message": "no"}}), wbits=31)
    pair.mb.once(Script(status=400, body=error, headers={"Content-Encoding": "gzip"}))
    answer = await pair.proxy.post(fresh())
    assert (answer.status, answer.json()) == (400, {"error": {"message": "no"}})


class Curt:
    """An upstream on bare sockets. It answers once on each connection, which it then says to keep, and ends that
    at the next byte; with `dies` it reads a question, says nothing and ends, and keeps no connection."""

    def __init__(self, mb: MockBackend, *, dies: bool = False) -> None:
        self.questions = 0
        self.ended_idle = 0
        self._manifest = mb.manifest
        self._dies = dies

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._once(reader, writer)
        writer.close()

    async def _once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        await reader.readexactly(next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0))
        asked = lines[0].startswith("post")
        self.questions += asked
        if asked and self._dies:
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": f"n{self.questions}"}}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        data = encoded({**answer, "choices": [{**choice, "finish_reason": "stop"}]} if asked else self._manifest)
        fields = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Content-Length: %d" % len(data)]
        fields += [b"Connection: close" if self._dies else b"Connection: keep-alive"]
        fields += [b"x-samewise-environment: " + self._manifest["id"].encode()]
        writer.write(b"\r\n".join([*fields, b"", b""]) + data)
        await writer.drain()
        if not self._dies and await reader.read(1):
            self.ended_idle += 1


async def test_idle_connections_that_the_upstream_ends_as_they_are_used_cost_no_request(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    upstream = Curt(mb)
    async with upstream.listening() as url:
        proxy = await make_proxy(url)
        answers = [await proxy.post(fresh()) for _ in range(100)]
        assert {answer.status for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 100
        assert upstream.questions == 100
        assert upstream.ended_idle > 30
        await proxy.stop()


async def test_an_upstream_that_read_the_question_and_died_is_not_asked_again(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    upstream = Curt(mb, dies=True)
    async with upstream.listening() as url:
        proxy = await make_proxy(url)
        answer = await proxy.post(fresh())
        assert (answer.status, answer.cache) == (502, "ERROR")
        assert upstream.questions == 1
        await proxy.stop()


async def test_an_upstream_that_worked_on_the_question_and_died_is_not_asked_again(pair: Pair) -> None:
    """On a connection that had been used before, too: it was not idle when it ended."""
    await pair.proxy.post(fresh())
    pair.mb.once(Script(wire=b"", delay=1.1))
    answer = await pair.proxy.post(fresh())
    assert (answer.status, answer.cache) == (502, "ERROR")
    assert pair.mb.count == 2


@pytest.mark.parametrize("size", [7_000, 9_000, 15_000, 60_000, 300_000])
async def test_long_credentials_are_accepted_or_refused_in_words(pair: Pair, size: int) -> None:
    body = fresh()
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(request(encoded(body), "Authorization: Bearer " + "k" * size))
        heard = await wire.answer()
    if size <= 15_000:
        assert heard.status == 200
        assert len(pair.mb.received[0].headers["authorization"]) == size + 7
    else:
        assert heard.status in (200, 400, 431)
    assert heard.status == 200 or set(json.loads(heard.body)["error"]) == {"message", "type", "param", "code"}


async def test_many_headers_and_long_ones_of_the_upstream_break_nothing(pair: Pair) -> None:
    pair.mb.once(Script(headers={"x-long": "v" * 10_000}))
    answer = await pair.proxy.post(fresh(), headers={f"x-mine-{at}": "v" * 50 for at in range(110)})
    assert answer.status == 200
    assert pair.mb.received[0].headers["x-mine-109"] == "v" * 50


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_answer_that_keeps_coming_is_not_cut(make_proxy: MakeProxy, mb: MockBackend, stream: bool) -> None:
    idle = 3.0
    proxy = await make_proxy(settings={"timeouts.idle": idle, "timeouts.first_byte": ENOUGH})
    mb.always(Script(gap=idle / 12, chunks=15) if stream else Script(delay=1.2 * idle))
    mb.text = lambda body, number: f"{number:04d}" * 15
    body = fresh(stream=stream)
    first, again = await proxy.post(body), await proxy.post(body)
    assert (first.cache, again.cache, again.text) == ("MISS", "HIT", first.text)
    assert first.seconds > idle


FRAMINGS = {
    "two-lengths": ["Content-Length: {size}", "Content-Length: {less}"],
    "length-and-chunks": ["Content-Length: {size}", "Transfer-Encoding: chunked"],
    "space-before-colon": ["Transfer-Encoding : chunked"],
    "unknown-coding": ["Transfer-Encoding: xchunked"],
    "coding-after-chunks": ["Transfer-Encoding: chunked, identity"],
    "signed-length": ["Content-Length: +{size}"],
    "length-of-words": ["Content-Length: {size} bytes"],
    "negative-length": ["Content-Length: -1"],
    "folded-header": ["X-A: b\r\n Content-Length: {size}"],
    "nul-in-header": ["X-A: b\0c", "Content-Length: {size}"],
}


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_framing_that_can_be_read_two_ways_is_refused(pair: Pair, framing: str) -> None:
    known, smuggled = fresh(), fresh()
    await pair.proxy.post(known)
    body = encoded(known)
    lines = [line.format(size=len(body), less=len(body) - 5) for line in FRAMINGS[framing]]
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(request(body, *lines, length=False) + request(encoded(smuggled)))
        heard = await wire.answer()
        assert heard.status in (400, 501)
        assert await wire.closed()
    assert pair.mb.count == 1
    after = await pair.proxy.post(known)
    assert after.cache == "HIT"
    assert (await pair.proxy.post(smuggled)).cache == "MISS"


@pytest.mark.parametrize("size", [b"\n", b"zz\r\n", b"-5\r\n", b"0x5\r\n", b"5 5\r\n"])
async def test_chunks_that_are_none_are_refused(pair: Pair, size: bytes) -> None:
    body = encoded(fresh())
    framed = (b"%x\n" % len(body) if size == b"\n" else size) + body + b"\r\n0\r\n\r\n"
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(request(framed, "Transfer-Encoding: chunked", length=False))
        heard = await wire.answer()
        assert heard.status == 400
        assert await wire.closed()
    assert pair.mb.count == 0


async def test_chunks_of_any_shape_are_one_body(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    for framed in (
        chunked(encoded(body)),
        chunked(encoded(body), size=10, trailer=b"X-Checksum: 1\r\n"),
        chunked(encoded(body), size=10, extension=b";a=b"),
    ):
        async with Wire.to(pair.proxy.address) as wire:
            await wire.send(request(framed, "Transfer-Encoding: chunked", length=False), piece=31)
            heard = await wire.answer()
        assert (heard.header("x-samewise-cache"), heard.body) == ("HIT", first.body)
    other = fresh()
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(request(chunked(encoded(other)), "Transfer-Encoding: chunked", length=False))
        assert (await wire.answer()).status == 200
    received = pair.mb.received[-1]
    assert received.body["messages"] == other["messages"]
    assert received.headers.get("content-length") == str(len(received.raw))
    assert "transfer-encoding" not in received.headers


async def test_headers_of_one_hop_stay_on_it(pair: Pair) -> None:
    async with Wire.to(pair.proxy.address) as wire:
        lines = ["Connection: close, X-A", "X-A: 1", "X-B: 2", "TE: trailers", "Proxy-Authorization: Basic eA=="]
        lines += ["Keep-Alive: timeout=5", "Accept-Encoding: br, x-unknown", "Cookie: a=b", "Forwarded: for=1"]
        await wire.send(request(encoded(fresh()), *lines).replace(b"Host: proxy", b"Host: evil"))
        assert (await wire.answer()).status == 200
    headers = pair.mb.received[0].headers
    assert headers["host"] == f"127.0.0.1:{pair.mb.port}"
    gone = {"x-a", "te", "proxy-authorization", "keep-alive", "upgrade"}
    assert not gone & set(headers)
    assert headers.get("connection", "keep-alive") == "keep-alive"
    assert headers["x-b"] == "2"
    assert "x-unknown" not in headers["accept-encoding"]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 504])
async def test_an_error_passes_unchanged_and_is_not_kept(pair: Pair, status: int) -> None:
    body = fresh()
    told = {"error": {"message": f"own words {status}", "type": "t", "param": "p", "code": "c"}, "extra": 1}
    script = Script(status=status, body=told, headers={"Retry-After": "11", "x-upstream": "u"})
    pair.mb.when(body["messages"][0]["content"], script)
    for _ in range(2):
        answer = await pair.proxy.post(body)
        assert (answer.status, answer.body, answer.cache) == (status, encoded(told), "ERROR")
        assert (answer.headers["retry-after"], answer.headers["x-upstream"]) == ("11", "u")
    assert pair.mb.count == 2
    pair.mb.usual()
    assert (await pair.proxy.post(body)).cache == "MISS"


async def test_an_error_that_calls_itself_200_is_not_kept(pair: Pair) -> None:
    body, told = fresh(), {"error": {"message": "overloaded"}}
    pair.mb.when(body["messages"][0]["content"], Script(status=200, body=told))
    answers = [await pair.proxy.post(body) for _ in range(2)]
    assert [answer.json() for answer in answers] == [told, told]
    assert "HIT" not in {answer.cache for answer in answers}
    assert pair.mb.count == 2


DIFFER = {"date", "age", "cache-status", "x-request-id"} | {
    f"x-samewise-{name}" for name in ("cache", "reason", "verified")
}


@pytest.mark.parametrize("stream", [False, True])
async def test_hits_and_shared_answers_have_the_headers_of_a_miss(pair: Pair, stream: bool) -> None:
    body = fresh(stream=stream)
    gate = asyncio.Event()
    headers = {"x-product": "yes", "Access-Control-Allow-Origin": "*", "Server": "mock"}
    pair.mb.once(Script(gate=gate, headers=headers))
    first, joined = [asyncio.create_task(pair.proxy.post(body)) for _ in range(2)]
    await pair.proxy.waits(2)
    gate.set()
    answers = [await first, await joined, await pair.proxy.post(body)]
    assert sorted(str(answer.cache) for answer in answers) == ["COALESCED", "HIT", "MISS"]
    framing = {"transfer-encoding", "content-length"}
    shown = [
        {
            name.lower(): value
            for name, value in answer.headers.items()
            if name.lower() not in DIFFER and name.lower() not in framing
        }
        for answer in answers
    ]
    assert shown[0] == shown[1] == shown[2]
    assert shown[2]["x-product"] == "yes"
    assert shown[2]["access-control-allow-origin"] == "*"


async def test_a_preflight_reaches_the_upstream(pair: Pair) -> None:
    asked = {"Origin": "http://a", "Access-Control-Request-Method": "POST"}
    await pair.proxy.request("OPTIONS", CHAT, headers=asked)
    assert pair.mb.others[-1].method == "OPTIONS"
    assert pair.mb.others[-1].headers["origin"] == "http://a"


async def test_expect_100_continue_is_answered(pair: Pair) -> None:
    body = encoded(fresh())
    async with Wire.to(pair.proxy.address) as wire:
        head = request(b"", "Expect: 100-continue", f"Content-Length: {len(body)}", length=False)
        await wire.send(head)
        assert (await wire.answer()).status == 100
        await wire.send(body)
        assert (await wire.answer()).status == 200


async def test_requests_that_come_at_once_are_answered_in_order(pair: Pair) -> None:
    bodies = [fresh() for _ in range(3)]
    known = [await pair.proxy.post(body) for body in bodies]
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(b"".join(request(encoded(body)) for body in bodies))
        heard = [await wire.answer() for _ in bodies]
    assert [each.body for each in heard] == [answer.body for answer in known]


class Draining:
    """A proxy that got SIGTERM, at `stopped`, while a stream and three callers that share it were under way."""

    def __init__(self, proxy: Proxy, gate: asyncio.Event, tasks: list[asyncio.Task[Any]], stopped: float) -> None:
        self.proxy = proxy
        self.gate = gate
        self.tasks = tasks
        self.stopped = stopped


@pytest_asyncio.fixture(loop_scope="session")
async def draining(make_proxy: MakeProxy, mb: MockBackend, tmp_path: Any, drain: float) -> Draining:
    """`drain`: seconds that it gives them."""
    store = f"sqlite:///{tmp_path}/kept.db"
    proxy = await make_proxy(settings={"store.url": store, "server.drain": drain})
    gate = asyncio.Event()

    async def wait_after_first(at: int) -> None:
        if at == 0:
            await gate.wait()

    mb.always(Script(sent=wait_after_first))
    body = fresh(stream=True)
    tasks = [asyncio.create_task(proxy.post(body)) for _ in range(4)]
    await proxy.waits(4)
    stopped = asyncio.get_running_loop().time()
    proxy.signal(signal.SIGTERM)

    async def refuses() -> bool:
        try:
            async with Wire.to(proxy.address) as wire:
                await wire.send(request(b"", path="/readyz", method="GET"))
                return (await wire.answer()).status == 503
        except (ConnectionError, asyncio.IncompleteReadError):
            return True

    await until(refuses)
    return Draining(proxy, gate, tasks, stopped)


@pytest.mark.parametrize("drain", [10 * ENOUGH])
async def test_a_stop_lets_what_runs_end_and_keeps_it(draining: Draining, mb: MockBackend) -> None:
    draining.gate.set()
    answers = await asyncio.gather(*draining.tasks)
    assert {answer.data()[-1] for answer in answers} == {"[DONE]"}
    assert len({answer.body for answer in answers}) == 1
    assert await draining.proxy.ended() == 0
    await draining.proxy.restart()
    body = {**mb.received[0].body, "stream": True}
    assert (await draining.proxy.post(body)).cache == "HIT"
    assert mb.count == 1


@pytest.mark.parametrize(("drain", "again"), [(2.0, False), (10 * ENOUGH, True)], ids=["grace-ends", "second-signal"])
async def test_a_stop_that_cannot_wait_ends_all_the_same_and_keeps_nothing_half(
    draining: Draining, mb: MockBackend, again: bool
) -> None:
    if again:
        draining.proxy.signal(signal.SIGTERM)
    async with asyncio.timeout(ENOUGH):
        await draining.proxy.ended()
        cut = await asyncio.gather(*draining.tasks, return_exceptions=True)
    assert again or asyncio.get_running_loop().time() - draining.stopped > 1.9
    for each in cut:
        assert isinstance(each, aiohttp.ClientError | ConnectionError) or (
            not isinstance(each, BaseException) and "[DONE]" not in each.data()
        )
    mb.usual()
    await draining.proxy.restart()
    assert (await draining.proxy.post({**mb.received[0].body, "stream": True})).cache == "MISS"
