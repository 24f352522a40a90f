"""The shim does to a server what tests say it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.support.patience import ENOUGH
from tests.support.shim import Shim, redis_commands, redis_error


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1024):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def _ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        return await asyncio.wait_for(reader.read(100), ENOUGH)
    finally:
        writer.close()


async def test_bytes_pass_unchanged_and_are_seen(echo: int) -> None:
    async with Shim.before(echo) as shim:
        assert await _ask(shim.port, b"hello") == b"hello"
        assert shim.requests == [b"hello"]
        assert shim.accepted == 1


async def test_a_delay_holds_the_reply_back(echo: int) -> None:
    async with Shim.before(echo) as shim:
        shim.delay = (0.05, 0.06)
        began = asyncio.get_running_loop().time()
        assert await _ask(shim.port, b"hello") == b"hello"
        assert asyncio.get_running_loop().time() - began >= 0.05


async def test_frozen_means_silence_until_thawed(echo: int) -> None:
    async with Shim.before(echo) as shim:
        shim.freeze()
        reader, writer = await asyncio.open_connection("127.0.0.1", shim.port)
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(100), 0.05)
        shim.thaw()
        assert await asyncio.wait_for(reader.read(100), ENOUGH) == b"hello"
        writer.close()


async def test_held_replies_come_when_they_are_released(echo: int) -> None:
    async with Shim.before(echo) as shim:
        shim.hold()
        asking = asyncio.create_task(_ask(shim.port, b"hello"))
        async with asyncio.timeout(ENOUGH):
            while not shim.requests:  # noqa: ASYNC110 - the shim tells nobody
                await asyncio.sleep(0.01)
        assert not asking.done()
        shim.release()
        assert await asking == b"hello"


async def test_a_reply_is_cut_in_its_middle(echo: int) -> None:
    async with Shim.before(echo) as shim:
        shim.cut_after(3)
        reader, writer = await asyncio.open_connection("127.0.0.1", shim.port)
        writer.write(b"hello")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := await asyncio.wait_for(reader.read(100), ENOUGH):
                received += chunk
        assert received in (b"", b"hel")
        writer.close()


async def test_refused_then_accepted_on_the_same_port(echo: int) -> None:
    async with Shim.before(echo) as shim:
        port = shim.port
        shim.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await shim.accept()
        assert shim.port == port
        assert await _ask(port, b"again") == b"again"


async def test_an_error_is_answered_once_for_each_command(echo: int) -> None:
    get = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"
    put = b"*3\r\n$3\r\nset\r\n$1\r\na\r\n$1\r\nb\r\n"
    assert redis_commands(get + put) == ["GET", "SET"]
    async with Shim.before(echo) as shim:
        shim.answer = redis_error("OOM full", only={"SET"})
        assert await _ask(shim.port, get) == get
        assert await _ask(shim.port, get + put) == b"-OOM full\r\n-OOM full\r\n"
