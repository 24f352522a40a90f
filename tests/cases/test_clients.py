"""What clients rely on: ids, usage, model lists, methods, retries; seen with the official client and on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import Body, fresh, without
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import CHAT, Answered, Proxy, until

OWN = {"Authorization": "Bearer k"}


def client_of(proxy: Proxy, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="k", **{"max_retries": 0, **options})


@pytest_asyncio.fixture(loop_scope="session")
async def client(pair: Pair) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, without retries."""
    async with client_of(pair.proxy) as made:
        yield made


def stamps(answer: Answered) -> set[tuple[str, int]]:
    """Ids and times of the chunks."""
    return {(chunk["id"], chunk["created"]) for chunk in map(json.loads, answer.data()[:-1])}


async def test_a_hit_has_the_id_and_time_of_its_recording_in_either_form(pair: Pair) -> None:
    for warm in (False, True):
        body = fresh()
        first = await pair.proxy.post({**body, "stream": warm})
        whole, stream = [await pair.proxy.post({**body, "stream": each}) for each in (False, True)]
        recorded = (whole.json()["id"], whole.json()["created"])
        assert stamps(stream) == {recorded}
        assert stamps(first) == {recorded} if warm else first.body == whole.body
        assert (whole.cache, stream.cache) == ("HIT", "HIT")
        assert len({each.headers["x-request-id"] for each in (first, whole, stream)}) == 3


async def test_the_official_client_gets_equal_objects_from_miss_and_hit(pair: Pair, client: openai.AsyncOpenAI) -> None:
    body = fresh()
    miss, hit = [await client.chat.completions.with_raw_response.create(**body) for _ in range(2)]
    assert [answer.headers["x-samewise-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    assert miss.parse() == hit.parse()
    stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == hit.parse().choices[0].message.content
    assert chunks[-1].usage == hit.parse().usage


async def test_text_completions_and_embeddings_work_with_the_official_client(
    pair: Pair, client: openai.AsyncOpenAI
) -> None:
    prompts = [fresh()["messages"][0]["content"] for _ in range(2)]
    asked = {"model": "m", "prompt": prompts, "temperature": 0, "seed": 7}
    texts = [await client.completions.create(**asked) for _ in range(2)]  # type: ignore[call-overload]
    assert [choice.index for choice in texts[0].choices] == [0, 1]
    assert texts[0] == texts[1]
    vectors = [await client.embeddings.create(model="m", input=prompts) for _ in range(2)]
    assert vectors[0].data == vectors[1].data
    assert isinstance(vectors[0].data[0].embedding[0], float)
    assert len(vectors[0].data[0].embedding) == 16
    assert (await pair.proxy.post(asked, path="/v1/completions", headers=OWN)).cache == "HIT"


@pytest.mark.parametrize("change", [{}, {"stream": False}, {"stream": None}, {"stream": True}], ids=str)
async def test_what_the_backend_gets_is_what_the_client_sent(pair: Pair, change: dict[str, Any]) -> None:
    body = {**fresh(tools=[{"type": "function", "function": {"name": "f"}}], zz_new=[1, {"a": None}]), **change}
    await pair.proxy.post(body)
    (received,) = pair.mb.received
    if change.get("stream"):
        assert received.body == {**body, "stream_options": {"include_usage": True}}
    else:
        sent, got = (
            {name: value for name, value in each.items() if name != "stream"} for each in (body, received.body)
        )
        assert got == sent
        assert not received.body.get("stream")
        assert list(got) == list(sent)


async def test_the_list_of_models_is_the_backends_at_this_moment(pair: Pair, client: openai.AsyncOpenAI) -> None:
    before = list(pair.mb.models)
    assert [model.id async for model in client.models.list()] == before
    pair.mb.models = [*before, "m-new"]
    try:
        assert [model.id async for model in client.models.list()] == pair.mb.models
    finally:
        pair.mb.models = before
    assert (await client.models.with_raw_response.list()).headers["x-samewise-cache"] == "BYPASS"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_the_backends_to_refuse_and_never_cached(pair: Pair, method: str) -> None:
    for _ in range(2):
        answer = await pair.proxy.request(method, CHAT)
        assert (answer.status, answer.headers["allow"], answer.cache) == (405, "POST", "ERROR")
        assert answer.key is None
    assert len([each for each in pair.mb.others if each.method == method and each.path == CHAT]) == 2


async def test_head_tells_the_size_and_sends_no_body(pair: Pair) -> None:
    whole = await pair.proxy.request("GET", "/v1/models")
    head = await pair.proxy.request("HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len(whole.body)


async def tries_in_vain(client: openai.AsyncOpenAI, body: Body, came: Callable[[], bool]) -> None:
    """Three tries that nobody answers; anew, with more patience, where the machine was too busy for them to come."""
    for patience in (0.3, 1.0, 3.0, 9.0, 27.0):
        asking = client.with_options(timeout=patience, max_retries=2)
        with pytest.raises(openai.APITimeoutError):
            await asking.chat.completions.create(**body, extra_headers={"Idempotency-Key": "one"})
        if came():
            return
    raise AssertionError("the backend was not asked as often as the client tried")


async def test_a_client_that_retries_a_reproducible_request_finds_its_first_try(pair: Pair) -> None:
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    body = fresh()
    async with client_of(pair.proxy) as client:
        await tries_in_vain(client, body, lambda: pair.mb.count > 0)
        assert (pair.mb.count, pair.mb.peak) == (1, 1)
        gate.set()

        async def kept() -> bool:
            answer = await pair.proxy.post(body, headers={"Cache-Control": "only-if-cached", **OWN})
            return answer.cache == "HIT"

        await until(kept)
        answer = await client.chat.completions.create(**body)
    assert answer.choices[0].message.content
    assert pair.mb.count == 1


async def test_a_try_that_nobody_waits_for_ends_before_the_next_where_nothing_is_kept(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy()
    mb.always(Script(gate=asyncio.Event()))
    body = without(fresh(temperature=1), "seed")
    seen = 0

    def each_try_came() -> bool:
        nonlocal seen
        before, seen = seen, mb.count
        return seen - before == 3

    async with client_of(proxy) as client:
        await tries_in_vain(client, body, each_try_came)
    assert mb.peak == 1

    async def left() -> bool:
        return mb.running == 0

    await until(left)


async def test_an_idempotency_key_never_stands_for_another_body(pair: Pair) -> None:
    headers = {"Idempotency-Key": "same"}
    first, second = fresh(), fresh()
    answers = [await pair.proxy.post(body, headers=headers) for body in (first, second, first, second)]
    assert [answer.cache for answer in answers] == ["MISS", "MISS", "HIT", "HIT"]
    assert answers[0].body == answers[2].body != answers[1].body == answers[3].body
    assert [received.headers["idempotency-key"] for received in pair.mb.received] == ["same", "same"]


async def test_an_idempotency_key_makes_no_sample_of_many(pair: Pair) -> None:
    body = without(fresh(temperature=1), "seed")
    answers = [await pair.proxy.post(body, headers={"Idempotency-Key": "same"}) for _ in range(2)]
    assert answers[0].text != answers[1].text
