"""Streams that are silent for long, or carry more than can be kept."""

from __future__ import annotations

import asyncio

import openai

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import fresh
from tests.support.chunks import text_stream
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import until


async def test_a_silent_stream_shows_that_it_lives_in_comments_alone(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings={"server.ping": 0.1})
    later = asyncio.Event()

    async def between(at: int) -> None:
        if at == 2:
            await later.wait()

    mb.always(Script(sse=[b"id: 5\ndata: " + piece[6:] for piece in text_stream("one ", "two")], sent=between))
    body = {**fresh(), "stream": True}
    async with proxy.stream(body) as stream:

        async def two_signs() -> bool:
            return stream.held.count(b": keep-alive\n") >= 2

        async def go_on() -> None:
            await until(two_signs)
            later.set()

        going_on = asyncio.create_task(go_on())
        blocks = [block async for block in stream.blocks()]
        await going_on
    assert "".join(blocks).count(": keep-alive\n") >= 2
    for block in blocks:
        *noise, data = block.split("\n")
        assert set(noise) <= {": keep-alive"}
        assert data.startswith("data: ")
    hit = await proxy.post(body)
    assert (hit.cache, hit.text) == ("HIT", "one two")
    assert b"keep-alive" not in hit.body


async def test_the_official_client_reads_a_stream_with_signs_of_life(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings={"server.ping": 0.05})
    mb.always(Script(gap=0.2))
    body = fresh()
    async with openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="k", max_retries=0) as client:
        for _ in range(2):
            stream = await client.chat.completions.create(**body, stream=True)
            said = [each.choices[0].delta.content or "" async for each in stream]
            assert "".join(said) == "nonce 1 end"


async def test_a_line_beyond_the_limit_of_an_entry_is_given_and_not_kept(pair: Pair) -> None:
    text = "x" * (9 << 20)
    pair.mb.always(Script(sse=text_stream(text)))
    body = fresh(stream=True)
    for _ in range(2):
        answer = await pair.proxy.post(body)
        assert (answer.cache, answer.text == text) == ("MISS", True)
    assert pair.mb.count == 2
