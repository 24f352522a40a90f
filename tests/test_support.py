"""What other tests lean on holds by itself: the mock backend, the bodies, the clients that see bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.bodies import Body, fresh, without
from tests.support.mock_backend import GENERATES, MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import Answered
from tests.support.wire import Wire, chunked, request

BODIES: dict[str, Body] = {
    "/v1/chat/completions": fresh(),
    "/v1/completions": {"model": "m", "prompt": ["a", "b"], "n": 2},
    "/v1/embeddings": {"model": "m", "input": ["a", "b"]},
    "/v1/responses": {"model": "m", "input": "a"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
    "/v1/rerank": {"model": "m", "query": "a", "documents": ["a", "b"]},
    "/v1/score": {"model": "m", "text_1": "a", "text_2": "b"},
}


@pytest.fixture
async def mb() -> AsyncIterator[MockBackend]:
    async with MockBackend() as backend:
        yield backend


async def ask(mb: MockBackend, body: Body, path: str = "/v1/chat/completions") -> Answered:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(mb.url.removesuffix("/v1") + path, json=body) as response,
    ):
        return Answered(response.status, response.headers, await response.read(), 0)


def test_every_family_has_a_body_here() -> None:
    assert set(BODIES) == GENERATES


@pytest.mark.parametrize("path", sorted(GENERATES))
async def test_it_counts_keeps_and_says_something_new_each_time(mb: MockBackend, path: str) -> None:
    body = BODIES[path]
    first, second = await ask(mb, body, path), await ask(mb, body, path)
    assert (first.status, second.status, mb.count) == (200, 200, 2)
    assert first.body != second.body
    assert [received.body for received in mb.received] == [body, body]
    assert first.headers["x-samewise-environment"] == mb.manifest["id"]
    mb.forget()
    assert (mb.count, mb.received) == (0, [])
    assert (await ask(mb, body, path)).body not in (first.body, second.body)


async def test_an_answer_can_be_a_function_of_the_question(mb: MockBackend) -> None:
    mb.text = lambda body, _: f"seed {body['seed']}"
    assert (await ask(mb, fresh(seed=3))).text == (await ask(mb, fresh(seed=3))).text == "seed 3"


async def test_its_environment_can_change_and_its_contract_can_go(mb: MockBackend) -> None:
    mb.become("b" * 32, weights="sha256:1")
    assert (await ask(mb, fresh())).headers["x-samewise-environment"] == "b" * 32
    root = mb.url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session:
        async with session.get(root + "/samewise/environment") as response:
            assert (await response.json())["weights"] == "sha256:1"
        mb.contract = False
        async with session.get(root + "/samewise/environment") as response:
            assert response.status == 404
    assert "x-samewise-environment" not in (await ask(mb, fresh())).headers


async def test_scripts_answer_once_always_or_for_a_text(mb: MockBackend) -> None:
    mb.always(Script(status=503))
    mb.when("special", Script(status=418))
    mb.once(Script(status=429, headers={"Retry-After": "1"}))
    body = fresh()
    assert [(await ask(mb, body)).status for _ in range(2)] == [429, 503]
    assert (await ask(mb, {**body, "x": "special"})).status == 418
    mb.usual()
    assert (await ask(mb, body)).status == 200


@pytest.mark.parametrize("end", ["reset", "cut", "stall"])
async def test_a_stream_ends_as_it_is_told(mb: MockBackend, end: str) -> None:
    mb.once(Script(sse=[b"data: 1\n\n"], end=end))
    async with aiohttp.ClientSession() as session, session.post(mb.url + "/chat/completions", json=fresh()) as response:
        assert await response.content.readany() == b"data: 1\n\n"
        with pytest.raises(TimeoutError if end == "stall" else aiohttp.ClientError):
            async with asyncio.timeout(0.1 if end == "stall" else ENOUGH):
                await response.read()


async def test_bytes_can_stand_in_place_of_a_response(mb: MockBackend) -> None:
    mb.once(Script(wire=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"))
    async with Wire.to(("127.0.0.1", mb.port)) as wire:
        await wire.send(request(json.dumps(fresh()).encode()))
        with pytest.raises(asyncio.IncompleteReadError):
            await wire.answer()


@pytest.mark.parametrize("stream", [False, True])
async def test_it_compresses(mb: MockBackend, stream: bool) -> None:
    mb.once(Script(encoding="gzip"))
    answer = await ask(mb, fresh(stream=stream))
    assert answer.headers["content-encoding"] == "gzip"
    assert b"nonce" in zlib.decompress(answer.body, 31)


async def test_a_gate_holds_answers_and_the_peak_is_known(mb: MockBackend) -> None:
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    tasks = [asyncio.create_task(ask(mb, fresh())) for _ in range(3)]
    await mb.arrived(3)
    assert not any(task.done() for task in tasks)
    assert (mb.running, mb.peak) == (3, 3)
    gate.set()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
    assert mb.running == 0


async def test_callers_that_leave_are_counted(mb: MockBackend) -> None:
    mb.always(Script(gate=asyncio.Event()))
    task = asyncio.create_task(ask(mb, fresh()))
    await mb.arrived(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(ENOUGH):
        while mb.gone == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert mb.running == 0


async def test_the_wire_reads_what_was_sent_in_chunks_or_pieces(mb: MockBackend) -> None:
    body = json.dumps(fresh()).encode()
    async with Wire.to(("127.0.0.1", mb.port)) as wire:
        framed = chunked(body, size=7, extension=b";a=b", trailer=b"X-T: 1\r\n")
        await wire.send(request(framed, "Transfer-Encoding: chunked", length=False), piece=5)
        heard = await wire.answer()
        assert (heard.status, heard.header("Content-Type")) == (200, "application/json")
        await wire.send(request(body, "Connection: close"))
        assert json.loads((await wire.answer()).body)["object"] == "chat.completion"
        assert await wire.closed()
    assert [received.raw for received in mb.received] == [body, body]


def test_bodies_are_never_the_same_twice() -> None:
    assert fresh()["messages"] != fresh()["messages"]
    assert without(fresh(seed=8, x=1), "seed", "x").keys() == without(fresh(), "seed").keys()


async def test_what_was_said_before_a_reset_is_read_though_sending_fails() -> None:
    """The server answers the first byte and closes with megabytes unread, which resets the connection."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 431 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, Wire.to(server.sockets[0].getsockname()) as wire:
        await wire.send(b"x" * (16 << 20))
        heard = await wire.answer()
        assert (heard.status, heard.body) == (431, b"no")
        assert await wire.closed()


async def test_a_stopped_backend_refuses_and_its_port_stays_its_own(mb: MockBackend) -> None:
    port = mb.port
    await mb.stop()
    with pytest.raises(ConnectionRefusedError):
        async with Wire.to(("127.0.0.1", port)):
            pass
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    await mb.start(port)
    assert (await ask(mb, fresh())).status == 200
