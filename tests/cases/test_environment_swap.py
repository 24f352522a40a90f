"""An environment that changes while an answer is made."""

from __future__ import annotations

import asyncio

from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy, until


async def test_a_stream_whose_backend_changed_before_its_end_is_served_and_not_kept(
    proxy: Proxy, mb: MockBackend
) -> None:
    asked = {**B0, "stream": True}
    mb.once(Script(gap=0.1))
    answering = asyncio.create_task(proxy.post(asked))
    await mb.arrived(1)
    mb.become("b" * 32)
    first = await answering
    assert first.data()[-1] == "[DONE]"
    mb.become("a" * 32)

    async def back() -> bool:
        answer = await proxy.post(asked)
        return answer.cache == "HIT" and answer.headers["x-samewise-environment"] == "a" * 32

    await until(back)
    assert (await proxy.post(asked)).text != first.text


async def test_an_answer_from_another_environment_than_the_key_s_is_served_and_not_kept(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy(settings={"environments.poll": "1h"})
    assert (await proxy.post(B0)).cache == "MISS"
    mb.become("b" * 32)
    other = {**B0, "seed": 8}
    moved = await proxy.post(other)
    assert moved.headers["x-samewise-environment"] == "b" * 32
    assert moved.reason == "environment-changed"
    mb.become("a" * 32)

    async def back() -> bool:
        return (await proxy.post(B0)).cache == "HIT"

    await until(back)
