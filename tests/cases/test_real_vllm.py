"""The whole chain: the official client, the proxy, a real vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy
from tests.support.bodies import new_text
from tests.support.proxy import Proxy, until
from tests.support.redis import RedisServer, redis_server
from tests.support.vllm import MODEL_NAME, VllmServer

__all__ = ["redis_server"]

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SAMPLING: dict[str, Any] = {"model": MODEL_NAME, "temperature": 0.7, "seed": 7, "max_tokens": 12}
KINDS = [(api, stream) for api in ("chat", "completions") for stream in (False, True)]


class Said:
    """An answer as a user of the official client has it."""

    def __init__(self, cache: str, text: str, ids: set[str], finish: list[str], usage: Any) -> None:
        self.cache = cache
        self.content = (text, ids, finish, usage)

    @property
    def text(self) -> str:
        return str(self.content[0])


def question(api: str) -> dict[str, Any]:
    """One that nobody has asked."""
    text = new_text()
    return (
        {**SAMPLING, "messages": [{"role": "user", "content": text}]} if api == "chat" else {**SAMPLING, "prompt": text}
    )


async def say(proxy: Proxy, api: str, body: dict[str, Any], *, stream: bool) -> Said:
    """Ask with the official client, and take everything that it gives."""
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=120) as client:
        resource: Any = client.chat.completions if api == "chat" else client.completions
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        raw = await resource.with_raw_response.create(**body, **options)
        cache = raw.headers["x-samewise-cache"]
        got: Any = raw.parse()
        if not stream:
            choice = got.choices[0]
            text = choice.message.content if api == "chat" else choice.text
            return Said(cache, text, {got.id}, [choice.finish_reason], got.usage)
        parts = [part async for part in got]
        choices = [part.choices[0] for part in parts if part.choices]
        texts = [(choice.delta.content if api == "chat" else choice.text) or "" for choice in choices]
        finish = [choice.finish_reason for choice in choices if choice.finish_reason]
        return Said(cache, "".join(texts), {part.id for part in parts}, finish, parts[-1].usage)


@pytest_asyncio.fixture(loop_scope="session")
async def durable(make_proxy: MakeProxy, vllm_server: VllmServer, tmp_path: Path) -> Proxy:
    """A proxy on SQLite before the real vLLM."""
    settings = {"store.url": f"sqlite:///{tmp_path / 'entries.db'}"}
    return await make_proxy(vllm_server.base_url, settings=settings)


@pytest_asyncio.fixture(loop_scope="session")
async def two(
    make_proxy: MakeProxy, vllm_server: VllmServer, redis_server: RedisServer
) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """Two proxies on one Redis before the real vLLM."""
    settings = {"store.url": redis_server.url, "store.memory": 0}
    yield (
        await make_proxy(vllm_server.base_url, settings=settings),
        await make_proxy(vllm_server.base_url, settings=settings),
    )


@pytest.mark.parametrize(("api", "stream"), KINDS)
async def test_the_second_call_is_a_hit_with_the_same_content_ids_and_usage_and_so_after_a_restart(
    durable: Proxy, api: str, stream: bool
) -> None:
    body = question(api)
    first, second = [await say(durable, api, body, stream=stream) for _ in range(2)]
    assert (first.cache, second.cache) == ("MISS", "HIT")
    assert first.content == second.content
    assert first.text
    assert first.content[3].completion_tokens > 0
    other = await say(durable, api, body, stream=not stream)
    assert (other.cache, other.content) == ("HIT", first.content)
    await durable.restart()
    again = await say(durable, api, body, stream=stream)
    assert (again.cache, again.content) == ("HIT", first.content)


async def test_what_is_asked_anew_says_the_same(durable: Proxy) -> None:
    body = question("chat")
    first = await durable.post(body)
    again = await durable.post(body, headers={"Cache-Control": "no-cache"})
    assert (first.cache, again.cache) == ("MISS", "REFRESH")
    assert first.text == again.text


async def test_a_second_proxy_hits_what_the_first_stored(two: tuple[Proxy, Proxy]) -> None:
    for api, stream in KINDS:
        body = question(api)
        first = await say(two[0], api, body, stream=stream)
        second = await say(two[1], api, body, stream=stream)
        assert (first.cache, second.cache) == ("MISS", "HIT")
        assert first.content == second.content


async def test_with_redis_killed_both_answer_and_caching_returns_with_it(
    two: tuple[Proxy, Proxy], redis_server: RedisServer
) -> None:
    body = question("chat")
    before = await say(two[0], "chat", body, stream=False)
    redis_server.kill()
    for proxy in two:
        for stream in (False, True):
            without = await say(proxy, "chat", body, stream=stream)
            assert without.cache == "MISS"
            assert without.text == before.text
    redis_server.start()
    fresh = question("chat")

    async def both_hit() -> bool:
        return [(await say(proxy, "chat", fresh, stream=False)).cache for proxy in two] == ["HIT", "HIT"]

    await until(both_hit, every=0.2)


async def test_a_model_that_vllm_does_not_serve_is_its_own_error(durable: Proxy) -> None:
    async with openai.AsyncOpenAI(base_url=f"{durable.url}/v1", api_key="k", max_retries=0) as client:
        for _ in range(2):
            with pytest.raises(openai.NotFoundError) as raised:
                await client.chat.completions.create(**{**question("chat"), "model": "ghost"})
            assert raised.value.response.headers["x-samewise-cache"] == "ERROR"
        assert [model.id async for model in client.models.list()] == [MODEL_NAME]
