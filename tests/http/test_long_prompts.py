"""Long prompts are keyed and written down beside the event loop: nobody waits for somebody else's."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from samewise.core import canonical, request
from samewise.pipeline.lane import Lane
from tests.http.test_hot import http, opened
from tests.support.mock_backend import MockBackend
from tests.support.proxy import B0


def long(size: int, text: str = "All happy families are alike. ") -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": (text * (size // len(text) + 1))[:size]}]}


@pytest.mark.parametrize("canary", [False, True])
async def test_short_requests_are_answered_while_a_long_one_is_keyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canary: bool
) -> None:
    entered, gate = threading.Event(), threading.Event()
    write = canonical.encode_large

    def held(value: Any) -> bytes:
        entered.set()
        assert gate.wait(60)
        return write(value)

    monkeypatch.setattr(canonical, "encode_large", held)
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {}) as house:
        if canary:
            values = {"values": {"top_p": 0.5}, "percent": 50}
            await house.admin("POST", "/samewise/v1/profiles/default/canary", values)
        await house.warm(http())
        asked = asyncio.create_task(house.once(http(long(2 << 20))))
        try:
            await asyncio.to_thread(entered.wait, 60)
            assert (await house.once(http()))[1]["x-samewise-cache"] == "HIT"
            assert (await house.once(http({**B0, "seed": 8})))[1]["x-samewise-cache"] == "MISS"
            assert (await house.once(http({**B0, "seed": 8})))[1]["x-samewise-cache"] == "HIT"
            assert not asked.done()
            assert mb.count == 2
        finally:
            gate.set()
        status, fields, body = await asked
        assert (status, fields["x-samewise-cache"]) == (200, "MISS")
        assert json.loads(mb.received[-1].raw) == long(2 << 20)
        again = await house.once(http(long(2 << 20)))
        assert (again[1]["x-samewise-cache"], again[2]) == ("HIT", body)


@pytest.mark.parametrize("bad", [b'{"model": "m", "model": "n", "x": "', b'{"model": "m", "x": NaN, "y": "'])
async def test_a_long_body_that_is_no_request_is_refused_as_a_short_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    async with MockBackend() as mb, opened(mb, tmp_path, monkeypatch, {}) as house:
        answers = [await house.once(http(bad + b"z" * size + b'"}')) for size in (10, canonical.LARGE)]
        assert [status for status, _, _ in answers] == [400, 400]
        assert answers[0][2] == answers[1][2]
        assert mb.count == 0


async def test_the_loop_turns_while_megabytes_are_read_and_keyed() -> None:
    raw = json.dumps(long(8 << 20)).encode()
    lane, turns = Lane(), 0

    def work() -> int:
        return len(canonical.encode_large(request.parse(raw)))

    keyed = asyncio.ensure_future(lane.run(len(raw), work))
    while not keyed.done():
        turns += 1
        await asyncio.sleep(0)
    assert await keyed > 8 << 20
    assert turns > 5
    await lane.close()


async def test_what_is_short_is_done_at_once() -> None:
    lane = Lane(large=10)
    assert await lane.run(9, threading.get_ident) == threading.get_ident()
    assert await lane.run(10, threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await lane.run(10, divmod, 1, 0)
    await lane.close()
