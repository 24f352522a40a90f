"""HTTP to one upstream: what travels, what comes back whole, and what is known when it doesn't."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from aiohttp import web
from msgspec.structs import replace

from samewise.core.address import base_url
from samewise.core.answer import Event
from samewise.ports import Call, UpstreamFailed
from samewise.upstream.address import locate
from samewise.upstream.client import Client
from samewise.upstream.decode import decoder
from samewise.upstream.options import Timeouts, UpstreamOptions
from tests.support.bursts import each
from tests.support.patience import ENOUGH
from tests.upstream.servers import JSON_OK, SSE_HEAD, chunk, http, read_request, reset, tcp

AMPLE = Timeouts(connect=ENOUGH, first_byte=ENOUGH, idle=ENOUGH, total=ENOUGH)
POST = Call(
    method="POST", path="/v1/chat/completions", body=b'{"a":1}', headers=(("content-type", "application/json"),)
)


@asynccontextmanager
async def client(
    url: str, timeouts: Timeouts = AMPLE, key: str = "", max_event: int = 64 << 20
) -> AsyncIterator[Client]:
    made = Client(UpstreamOptions(url=url, api_key=key), timeouts, max_event=max_event)
    try:
        yield made
    finally:
        await made.close()


async def collect(made: Client, call: Call = POST) -> tuple[list[Event], UpstreamFailed | None]:
    """The events of an exchange, and how it failed."""
    exchange = await made.open(call)
    seen: list[Event] = []
    try:
        async for event in each(exchange.bursts()):
            seen.append(event)  # noqa: PERF401 - what came before a failure counts
    except UpstreamFailed as failure:
        return seen, failure
    finally:
        await exchange.close()
    return seen, None


# --- where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("http://h:1/v1", "/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1/", "/tokenize", "http://h:1/tokenize"),
        ("http://h:1/v1", "/v1/a%2Fb?q=%20x", "http://h:1/v1/a%2Fb?q=%20x"),
        ("http://h:1/api/v1", "/v1/models", "http://h:1/api/v1/models"),
        ("http://h:1/openai", "/v1/models", "http://h:1/openai/models"),
        ("http://h:1", "/health", "http://h:1/health"),
        ("http://h:1/openai", "/v1beta", "http://h:1/openai/v1beta"),
    ],
)
def test_a_path_lies_where_an_openai_client_would_look(base: str, path: str, url: str) -> None:
    assert str(locate(base_url(base), path)) == url


# --- what travels -----------------------------------------------------------------------------------


async def test_the_upstream_sees_its_own_host_and_nothing_of_the_clients_hop() -> None:
    seen: list[list[tuple[str, str]]] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append([(name.lower(), value) for name, value in request.headers.items()])
        return web.Response(text="{}")

    headers = (
        ("Host", "evil"),
        ("Connection", "close, X-A"),
        ("X-A", "1"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic x"),
        ("Upgrade", "h2c"),
        ("Keep-Alive", "timeout=5"),
        ("Trailer", "x"),
        ("Content-Length", "999"),
        ("Transfer-Encoding", "chunked"),
        ("Expect", "100-continue"),
        ("Accept-Encoding", "compress"),
        ("Authorization", "Bearer client"),
        ("X-Request-Tag", "kept"),
        ("User-Agent", "theirs"),
    )
    async with http(handler) as url, client(url) as plain, client(url, key="ours") as keyed:
        for made in (plain, keyed):
            exchange = await made.open(Call(method="POST", path="/v1/x", body=b"{}", headers=headers))
            assert await exchange.read() == b"{}"
            await exchange.close()
    first, second = (dict(item) for item in seen)
    assert first.pop("host") == url.split("/")[2]
    assert set(first.pop("accept-encoding").split(", ")) <= {"gzip", "deflate", "br", "zstd"}
    assert first == {
        "authorization": "Bearer client",
        "content-length": "2",
        "x-request-tag": "kept",
        "user-agent": "theirs",
    }
    assert second["authorization"] == "Bearer ours"


async def test_nothing_of_the_upstreams_hop_comes_back() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
            b"Retry-After: 7\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Samewise-Environment: e1\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )

    async with tcp(talk) as url, client(url) as made:
        exchange = await made.open(POST, environment="other")
        assert await exchange.read() == b"{}"
        await exchange.close()
    assert exchange.headers == (
        ("retry-after", "7"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-samewise-environment", "e1"),
        ("content-type", "application/json"),
    )
    assert exchange.environment == "e1"


async def test_cookies_are_not_kept_and_redirects_not_followed() -> None:
    seen: list[str | None] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers.get("Cookie"))
        return web.Response(status=307, headers={"Location": "/v1/elsewhere", "Set-Cookie": "a=1"})

    async with http(handler) as url, client(url) as made:
        for _ in range(2):
            exchange = await made.open(POST)
            assert exchange.status == 307
            await exchange.read()
            await exchange.close()
    assert seen == [None, None]


async def test_a_streamed_request_body_arrives_whole() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"".join([piece async for piece in request.content.iter_any()]))

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a" * 70_000, b"b"):
            yield piece

    async with http(handler) as url, client(url) as made:
        for body in (pieces(), b"x" * (3 << 20)):
            exchange = await made.open(Call(method="POST", path="/v1/x", body=body))
            got = await exchange.read()
            await exchange.close()
            assert len(got) == (70_001 if not isinstance(body, bytes) else 3 << 20)


@pytest.mark.parametrize("size", [9_000, 100_000])
async def test_long_headers_of_the_upstream_do_no_harm(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        many = b"".join(b"X-%d: y\r\n" % number for number in range(300))
        writer.write(JSON_OK.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"z" * size + b"\r\n" + many + b"\r\n"))

    async with tcp(talk) as url, client(url) as made:
        exchange = await made.open(POST)
        assert await exchange.read() == b'{"ok":true}'
        await exchange.close()
    assert len(dict(exchange.headers)["x-long"]) == size


# --- content codings --------------------------------------------------------------------------------


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:]),
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "br": lambda data: brotli.compress(data, quality=5),
    "zstd": zstandard.compress,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data), quality=5),
    "identity": lambda data: data,
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("length", [1, 300_000, 1_000_000])
async def test_a_coded_body_is_decoded_whole_and_says_so(coding: str, length: int) -> None:
    plain = json.dumps({"text": "aé" * length}).encode() if length > 1 else b'{"text":"a longer one"}'
    body = CODINGS[coding](plain)

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, headers={"Content-Encoding": coding, "Content-Type": "application/json"})

    async with http(handler) as url, client(url) as made:
        exchange = await made.open(POST)
        assert await exchange.read() == plain
        await exchange.close()
    assert not {"content-encoding", "content-length"} & dict(exchange.headers).keys()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_a_coded_body_that_ends_early_or_is_broken_is_no_answer(coding: str) -> None:
    whole = CODINGS[coding](b'{"text":"' + bytes(range(256)) * 40 + b'"}')
    bodies = [whole[:-12], b"\xff\xfe not coded at all" * 4]

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=bodies.pop(0), headers={"Content-Encoding": coding})

    async with http(handler) as url, client(url) as made:
        while bodies:
            exchange = await made.open(POST)
            with pytest.raises(UpstreamFailed) as caught:
                await exchange.read()
            await exchange.close()
            assert (caught.value.kind, caught.value.sent) == ("protocol", True)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_small_body_that_grows_comes_in_pieces_of_some_megabytes(coding: str) -> None:
    bomb = CODINGS[coding](bytes(32 << 20))
    taking_off = decoder(coding)
    assert taking_off is not None and len(bomb) < 64 << 10
    sizes = [len(piece) for piece in taking_off.feed(bomb)]
    assert sum(sizes) == 32 << 20
    assert max(sizes) <= 9 << 20


def _flushing(coding: str) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    if coding == "br":
        stream = brotli.Compressor()
        return lambda data: stream.process(data) + stream.flush(), stream.finish
    if coding == "zstd":
        made = zstandard.ZstdCompressor().compressobj()
        return lambda data: made.compress(data) + made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), made.flush
    zipped = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    return lambda data: zipped.compress(data) + zipped.flush(zlib.Z_SYNC_FLUSH), zipped.flush


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_a_coded_stream_comes_event_by_event(coding: str) -> None:
    said = asyncio.Queue[bytes | None]()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": coding, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        put, finish = _flushing(coding)
        while (data := await said.get()) is not None:
            await response.write(put(b"data: " + data + b"\n\n"))
        await response.write(finish())
        return response

    async with http(handler) as url, client(url) as made:
        exchange = await made.open(POST)
        assert exchange.streaming
        events = each(exchange.bursts())
        for number in range(5):
            said.put_nowait(b"%d" % number)  # the next is said only once this one was heard
            assert await asyncio.wait_for(anext(events), ENOUGH) == Event(b"%d" % number)
        said.put_nowait(None)
        assert [event async for event in events] == []
        await exchange.close()


# --- streams ----------------------------------------------------------------------------------------

E1 = b'data: {"n":1}\n\n'


async def _scripted(*parts: bytes, end: str = "close") -> tuple[list[bytes], str | None]:
    """What comes of a stream that is written in these parts and ends in that way."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        if end == "reset":
            reset(writer)

    async with tcp(talk) as url, client(url) as made:
        events, failure = await collect(made)
    return [event.data for event in events], None if failure is None else failure.kind


async def test_a_stream_that_is_reset_within_an_event_was_cut() -> None:
    assert await _scripted(chunk(E1), chunk(b'data: {"n"'), end="reset") == ([b'{"n":1}'], "cut")


async def test_a_stream_that_closes_without_its_last_chunk_was_cut() -> None:
    assert await _scripted(chunk(E1)) == ([b'{"n":1}'], "cut")


async def test_a_message_that_ends_within_an_event_was_cut() -> None:
    assert await _scripted(chunk(E1), chunk(b'data: {"n"'), b"0\r\n\r\n") == ([b'{"n":1}'], "cut")


async def test_a_whole_message_without_done_ends_and_invents_nothing() -> None:
    assert await _scripted(chunk(E1), b"0\r\n\r\n") == ([b'{"n":1}'], None)


async def test_done_alone_may_lack_its_blank_line() -> None:
    assert await _scripted(chunk(E1), chunk(b"data: [DONE]"), b"0\r\n\r\n") == ([b'{"n":1}', b"[DONE]"], None)


async def test_keep_alives_of_the_upstream_are_no_events() -> None:
    noise = b": processing\n\nretry: 3000\n\nevent: ping\n\n"
    parts = [chunk(noise + E1 + noise), chunk(noise + b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    assert await _scripted(*parts) == ([b'{"n":1}', b"[DONE]"], None)


@pytest.mark.parametrize("size", [100_000, 200_000, 600_000, 5_000_000])
async def test_a_line_of_any_size_comes_whole(size: int) -> None:
    line = b"data: " + b"x" * size + b"\n\n"

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for at in range(0, len(line), 50_000):
            await response.write(line[at : at + 50_000])
        return response

    async with http(handler) as url, client(url) as made:
        events, failure = await collect(made)
        assert ([len(event.data) for event in events], failure) == ([size], None)
    async with http(handler) as url, client(url, max_event=50_000) as small:
        events, failure = await collect(small)
        assert events == []
        assert failure is not None
        assert failure.kind == "protocol"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
async def test_an_error_instead_of_a_stream_comes_at_once_and_unchanged(status: int) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=status, headers={"Retry-After": "3"})

    async with http(handler) as url, client(url) as made:
        exchange = await made.open(POST)
        assert not exchange.streaming
        assert (exchange.status, dict(exchange.headers)["retry-after"]) == (status, "3")
        assert json.loads(await exchange.read()) == {"error": {"message": "no"}}
        await exchange.close()


# --- time -------------------------------------------------------------------------------------------


async def test_a_stream_that_falls_silent_is_given_up_and_its_connection_ended() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(E1) * 3)
        await reader.read()
        gone.set()

    limits = replace(AMPLE, idle=0.2)
    async with tcp(talk) as url, client(url, limits) as made:
        events, failure = await collect(made)
        assert len(events) == 3
        assert failure is not None
        assert (failure.kind, failure.sent) == ("timeout", True)
        assert str(failure) == "the upstream sent nothing for 0.2 s"
        await asyncio.wait_for(gone.wait(), ENOUGH)


async def test_slow_but_steady_outlives_every_limit_but_the_total() -> None:
    """Fifteen pauses below the idle limit, together longer than it and than the time to the first byte."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for _ in range(15):
            await asyncio.sleep(0.1)
            writer.write(chunk(E1))
        writer.write(b"0\r\n\r\n")

    async with tcp(talk) as url:
        async with client(url, replace(AMPLE, first_byte=1.3, idle=1.3)) as made:
            events, failure = await collect(made)
            assert (len(events), failure) == (15, None)
        async with client(url, replace(AMPLE, total=0.8)) as made:
            events, failure = await collect(made)
            assert failure is not None
            assert (failure.kind, str(failure)) == ("timeout", "the upstream's answer took longer than 0.8 s")
            assert 0 < len(events) < 15


@pytest.mark.parametrize("head", [b"", SSE_HEAD])
async def test_the_first_byte_has_a_limit_of_its_own(head: bytes) -> None:
    """A queue may be longer than a silence in mid-answer: before the head, and between head and body."""
    told = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head)
        await told.wait()
        writer.write((b"" if head else SSE_HEAD) + chunk(E1) + b"0\r\n\r\n")

    async with tcp(talk) as url:
        async with client(url, replace(AMPLE, idle=0.3)) as made:
            asyncio.get_running_loop().call_later(0.5, told.set)
            assert (await collect(made))[1] is None
        told.clear()
        async with client(url, replace(AMPLE, connect=0.5, first_byte=0.1)) as made:
            with pytest.raises(UpstreamFailed) as caught:
                failure = (await collect(made))[1]
                assert failure is not None
                raise failure
            assert (caught.value.kind, caught.value.sent) == ("timeout", True)


async def test_a_reader_that_stops_stops_the_upstream() -> None:
    written = 0
    event, total = b"data: " + b"x" * 992 + b"\n\n", 24 << 20

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(SSE_HEAD)
        while written < total:
            writer.write(chunk(event * 50))
            await writer.drain()
            written += 50 * len(event)
        writer.write(b"0\r\n\r\n")

    limits = replace(AMPLE, idle=1.0)
    async with tcp(talk) as url, client(url, limits) as made:
        exchange = await made.open(POST)
        events = each(exchange.bursts())
        await anext(events)
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.2)
        assert written < total / 2
        await asyncio.sleep(1.2)  # longer than the idle limit, which counts only a reader's waiting
        count = 1 + sum([1 async for _ in events])
        assert count * len(event) == written >= total
        await exchange.close()


# --- connections ------------------------------------------------------------------------------------


async def test_closing_in_mid_answer_ends_the_connection() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + chunk(E1))
        await reader.read()
        gone.set()

    told: list[UpstreamFailed | None] = []
    async with tcp(talk) as url, client(url) as made:
        exchange = await made.open(POST, ended=told.append)
        events = each(exchange.bursts())
        await anext(events)
        await exchange.close()
        await exchange.close()
        await asyncio.wait_for(gone.wait(), ENOUGH)
    assert told == [None]


async def test_a_cancelled_request_ends_its_connection() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await reader.read()
        gone.set()

    async with tcp(talk) as url, client(url) as made:
        task = asyncio.create_task(made.open(POST))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), ENOUGH)


async def test_a_finished_stream_gives_its_connection_back_though_its_last_chunk_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("samewise.upstream.exchange._LAST_CHUNK", ENOUGH)
    ports: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            ports.append(writer.get_extra_info("peername")[1])
            writer.write(SSE_HEAD + chunk(E1) + chunk(b"data: [DONE]\n\n"))
            await asyncio.sleep(0.01)
            writer.write(b"0\r\n\r\n")

    async with tcp(talk) as url, client(url) as made:
        for _ in range(3):
            exchange = await made.open(POST)
            async for event in each(exchange.bursts()):
                if event.data == b"[DONE]":
                    break
            await exchange.close()
    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_an_idle_connection_that_was_closed_under_our_feet_costs_nobody_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes without a word as the next request arrives: it is sent again on a fresh connection."""
    monkeypatch.setattr("samewise.upstream.client._STALE", ENOUGH)
    connections: list[int] = []
    served = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        connections.append(0)
        await read_request(reader)
        served += 1
        writer.write(JSON_OK)
        await writer.drain()
        await reader.read(1)  # the next request begins to arrive: too late

    async with tcp(talk) as url, client(url) as made:
        for _ in range(20):
            exchange = await made.open(POST)
            assert await exchange.read() == b'{"ok":true}'
            await exchange.close()
    assert served == 20
    assert len(connections) == 20


async def test_a_request_on_a_fresh_connection_is_never_sent_twice() -> None:
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_request(reader)
        asked += 1

    async with tcp(talk) as url, client(url) as made:
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(POST)
    assert (caught.value.kind, caught.value.sent, asked) == ("cut", True, 1)


@pytest.mark.parametrize("manner", ["late", "head", "stream"])
async def test_on_a_reused_connection_what_may_have_run_is_not_sent_twice(
    manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It worked for a while first; it had begun to answer; its body can't be read twice."""
    monkeypatch.setattr("samewise.upstream.client._STALE", 0.2 if manner == "late" else ENOUGH)
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_request(reader)
        writer.write(JSON_OK)
        if manner == "stream":
            await reader.readuntil(b"0\r\n\r\n")
        else:
            await read_request(reader)
        asked += 1
        if manner == "late":
            await asyncio.sleep(0.3)
        if manner == "head":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-")
            await writer.drain()

    async def body() -> AsyncIterator[bytes]:
        yield b"{}"

    async with tcp(talk) as url, client(url) as made:
        exchange = await made.open(POST)
        await exchange.read()
        await exchange.close()
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(Call(method="POST", path="/v1/x", body=body()) if manner == "stream" else POST)
    assert caught.value.sent
    assert asked == 1


async def test_nobody_there_is_unreachable_and_nothing_was_sent() -> None:
    async with tcp(lambda reader, writer: asyncio.sleep(0)) as url:
        pass
    async with client(url) as made:
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(POST)
    assert (caught.value.kind, caught.value.sent) == ("unreachable", False)
    assert url in str(caught.value)


async def test_what_is_not_http_is_a_protocol_error() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"+PONG\r\n\r\n")

    async with tcp(talk) as url, client(url) as made:
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(POST)
    assert (caught.value.kind, caught.value.sent) == ("protocol", True)


@pytest.mark.slow
async def test_a_server_with_a_short_keep_alive_never_costs_an_error() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.json_response({"ok": True})

    async with http(handler, keepalive_timeout=0.1) as url, client(url) as made:
        for number in range(80):
            exchange = await made.open(POST)
            assert exchange.status == 200
            await exchange.read()
            await exchange.close()
            await asyncio.sleep(0.09 + 0.02 * (number % 20) / 20)
