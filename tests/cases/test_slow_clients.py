"""Clients that are slow, silent, large or gone hold up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import fresh
from tests.support.faults import echo, echoed, prompt
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy, until
from tests.support.wire import Wire

PATIENCE = 0.5
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def impatient(make_proxy: MakeProxy, patience: float = PATIENCE) -> Proxy:
    return await make_proxy(settings={"server.patience": patience})


async def answers_others(proxy: Proxy) -> None:
    """Return when somebody who keeps nobody waiting is answered; a busy machine may keep the proxy waiting too."""

    async def answered() -> bool:
        return (await proxy.post(B0)).status == 200

    await until(answered)


async def connect(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def dribble(wire: Wire, data: bytes) -> None:
    """A byte now and then."""
    for at in range(len(data)):
        await wire.send(data[at : at + 1])
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("said", [0, 1, 40, len(HEAD)])
async def test_a_head_that_does_not_come_is_waited_for_so_long_and_no_longer(make_proxy: MakeProxy, said: int) -> None:
    proxy = await impatient(make_proxy)
    whole = HEAD + b"X-A: " + b"a" * 2000
    async with Wire.to(proxy.address) as wire:
        await wire.send(whole[:said])
        sending = asyncio.create_task(dribble(wire, whole[said:]))
        heard = await wire.answer()
        sending.cancel()
        assert (heard.status, json.loads(heard.body)["error"]["code"]) == (408, "request_timeout")
        assert await wire.closed()
    await answers_others(proxy)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/audio/transcriptions"])
@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_body_that_falls_silent_is_408(
    make_proxy: MakeProxy, mb: MockBackend, path: bytes, framing: bytes
) -> None:
    proxy = await impatient(make_proxy)
    body = b'5\r\n{"mod\r\n' if b"chunked" in framing else b'{"mod'
    async with Wire.to(proxy.address) as wire:
        await wire.send(HEAD.replace(b"/v1/chat/completions", path) + framing + b"\r\n\r\n" + body)
        assert (await wire.answer()).status == 408
    assert mb.count == 0

    async def over() -> bool:
        return await proxy.metric("samewise_inflight") == 0

    await until(over)


async def test_a_connection_that_was_used_may_idle(make_proxy: MakeProxy) -> None:
    patience = 3.0
    proxy = await impatient(make_proxy, patience)
    body = json.dumps(B0).encode()
    async with Wire.to(proxy.address) as wire:
        for pause in (1.1 * patience, 0):
            await wire.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert (await wire.answer()).status == 200
            await asyncio.sleep(pause)


@pytest.mark.slow
async def test_hundreds_of_dribbling_clients_hold_up_nobody(pair: Pair) -> None:
    async with contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(Wire.to(pair.proxy.address)) for _ in range(300)]
        sending = [asyncio.create_task(dribble(link, HEAD * 3)) for link in links]
        warm = fresh()
        await pair.proxy.post(warm)
        took = sorted([(await pair.proxy.post(warm)).seconds for _ in range(40)])
        for task in sending:
            task.cancel()
    assert took[20] < 5, "and a dribbler takes three times as long"


@pytest.mark.slow
async def test_large_uploads_hold_up_nobody(pair: Pair) -> None:
    """Read, parsed and hashed in pieces that leave room for others."""
    warm = fresh()
    await pair.proxy.post(warm)
    large = json.dumps(fresh(messages=[{"role": "user", "content": "x" * (20 << 20)}])).encode()
    uploads = [asyncio.create_task(pair.proxy.post(large)) for _ in range(3)]
    took = []
    while not all(task.done() for task in uploads):
        took.append((await pair.proxy.post(warm)).seconds)
    assert {task.result().status for task in uploads} == {200}
    assert len(took) > 60, "answers while others upload"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_may_leave_at_any_moment(make_proxy: MakeProxy, mb: MockBackend, stream: bool) -> None:
    """After so many bytes sent or seconds waited, whichever; what others get is right, and nothing is left behind."""
    mb.text = echo
    mb.always(Script(gap=0.002 if stream else 0.0, delay=0.002))
    proxy = await make_proxy()
    chance = random.Random(stream)
    popular = [prompt(f"popular {number}", stream=stream) for number in range(5)]
    raw = [HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in map(encoded, popular)]

    async def leaves(whole: bytes) -> None:
        _, writer = await connect(proxy)
        cut = chance.choice((len(whole), len(whole), chance.randrange(len(whole))))
        writer.write(whole[:cut])
        await asyncio.sleep(chance.choice((0.0, 0.0, chance.uniform(0, 0.06))))
        writer.transport.abort() if chance.random() < 0.5 else writer.close()

    for _ in range(30):
        leaving = [asyncio.create_task(leaves(chance.choice(raw))) for _ in range(10)]
        staying = [chance.choice(popular) for _ in range(4)]
        got = await asyncio.gather(*(proxy.post(body) for body in staying))
        await asyncio.gather(*leaving)
        assert all(answer.status == 200 and echoed(body, answer) for body, answer in zip(staying, got, strict=True))

    async def over() -> bool:
        return await proxy.metric("samewise_inflight") == 0 and mb.running == 0

    await until(over)
    assert not [line for line in proxy.log if "Traceback" in line or "never retrieved" in line]


def encoded(body: dict[str, object]) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "target",
    [b"http://127.0.0.1:1/v1/models", b"//127.0.0.1:1/v1/models", b"/v1/../../v1/models", b"/v1/models#x", b"*"],
)
async def test_no_target_leads_anywhere_but_to_the_upstream(pair: Pair, target: bytes) -> None:
    before = len(pair.mb.others)
    got = await pair.proxy.raw(b"GET " + target + b" HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n")
    status = int(got.split(b" ", 2)[1])
    assert status in {200, 400, 404, 405}
    assert status == 400 or len(pair.mb.others) == before + 1
    assert all(each.headers["host"] != "evil" for each in pair.mb.others)
