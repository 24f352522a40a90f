"""Prefix reuse of the backends is shown, and is never one number with our own hits."""

from __future__ import annotations

from typing import Any

from tests.cases.conftest import MakeProxy
from tests.cases.test_explain import samewise, saved
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy

COMPLETIONS = "/v1/completions"
SYSTEM = "You answer questions about one large code base. " * 60


def conversation(turns: int, system: str = SYSTEM) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn}: " + "why is that so? " * 40})
        messages.append({"role": "assistant", "content": f"answer {turn}: " + "because of this. " * 40})
    return {**B0, "messages": messages[:-1]}


async def explained(proxy: Proxy, body: dict[str, Any], endpoint: str = "chat") -> dict[str, Any]:
    told = await proxy.admin("POST", "/explain", {"endpoint": endpoint, "body": body, "nearest": False})
    assert isinstance(told["prefix"], dict)
    return told["prefix"]


def completion(text: str, cached: int) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 3,
            "total_tokens": 103,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


async def test_an_explanation_tells_the_blocks_of_the_prompt_and_where_they_are_warm(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    async with MockBackend() as other:
        mb.manifest["block_size"] = other.manifest["block_size"] = 16
        proxy = await make_proxy(mb.url, other.url)
        cold = await explained(proxy, conversation(1))
        assert (cold["block_tokens"], cold["assumed"]) == (16, False)
        assert cold["blocks"] > 20
        assert cold["warm"] == {mb.url: 0, other.url: 0}
        assert await explained(proxy, conversation(1)) == cold
        assert (await explained(proxy, conversation(1, "Another system prompt. " * 60)))["digest"] != cold["digest"]

        await proxy.post(conversation(1))
        asked, unasked = (mb, other) if mb.count else (other, mb)
        warm = await explained(proxy, conversation(1))
        assert warm == {**cold, "warm": {asked.url: cold["blocks"], unasked.url: 0}}
        longer = await explained(proxy, conversation(3))
        assert longer["blocks"] > cold["blocks"]
        assert longer["warm"] == {asked.url: cold["blocks"], unasked.url: 0}
        assert mb.count + other.count == 1


async def test_the_command_shows_them_too(proxy: Proxy, mb: MockBackend) -> None:
    await proxy.post(conversation(1))
    told = await explained(proxy, conversation(2))
    _, shown, _ = await samewise(proxy, "explain", saved(proxy.folder, "r.json", conversation(2)))
    assert f"prefix {told['digest']}: {told['blocks']} blocks of 64 tokens (assumed)" in shown
    assert 10 < told["warm"][mb.url] < told["blocks"]
    assert f"{told['warm'][mb.url]} of {told['blocks']}" in shown


async def test_where_routing_keeps_no_record_none_is_told(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"routing.strategy": "round-robin"})
    await proxy.post(conversation(1))
    told = await explained(proxy, conversation(1))
    assert told["warm"] is None
    assert told["blocks"] > 1


async def test_each_prompt_of_a_list_has_a_prefix_of_its_own(proxy: Proxy) -> None:
    body = {"model": "m", "prompt": ["a" * 3000, "b" * 3000], "temperature": 0, "seed": 1}
    told = await proxy.admin("POST", "/explain", {"endpoint": "completions", "body": body})
    first, second = (unit["prefix"]["digest"] for unit in told["units"])
    assert first != second
    assert told["prefix"]["digest"] == first


async def test_tokens_that_a_backend_took_from_its_prefix_cache_are_told_of_the_request_that_it_answered_alone(
    proxy: Proxy, mb: MockBackend
) -> None:
    mb.when("warm one", Script(body=completion("first", 64)))
    mb.when("warm two", Script(body=completion("second", 16)))
    ask = {"model": "m", "temperature": 0, "seed": 1}
    key = (await proxy.post({**ask, "prompt": "warm one"}, path=COMPLETIONS)).key
    again = await proxy.post({**ask, "prompt": "warm one"}, path=COMPLETIONS)
    assert again.cache == "HIT"
    assert again.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
    await proxy.post({**ask, "prompt": ["warm one", "warm two"]}, path=COMPLETIONS)

    told = await proxy.admin("GET", "/recent")
    requests = [each for each in told["items"] if each["event"] == "request"]
    assert [(each["outcome"], each["prefix_cached"]) for each in requests] == [
        ("miss", 16),
        ("hit", None),
        ("miss", 64),
    ]
    assert all("cached_tokens" not in each["usage"] for each in requests)
    assert await proxy.metric("samewise_tokens_total", kind="prefix_cached") == 64 + 16
    assert (await proxy.admin("GET", f"/entries/{key}"))["usage"]["cached_tokens"] == 64
