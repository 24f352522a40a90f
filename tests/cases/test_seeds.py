"""Sampling without a seed: bypassed, pinned or recorded; samples of their own; several choices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy, Pair
from tests.support.mock_backend import MockBackend
from tests.support.proxy import CHAT, Answered, Proxy

MESSAGES = [{"role": "user", "content": "tell me something"}]
UNSEEDED = {"model": "m", "messages": MESSAGES, "temperature": 1, "max_tokens": 16}
COMPLETIONS = "/v1/completions"


@pytest_asyncio.fixture(loop_scope="session")
async def pinning(make_proxy: MakeProxy) -> Proxy:
    return await make_proxy(settings={"cache.unseeded": "pin"})


def seed_told(answer: Answered) -> int:
    return int(answer.headers["x-samewise-seed"])


def sample(number: int) -> dict[str, str]:
    return {"x-samewise-sample": str(number)}


async def test_unseeded_sampling_is_bypassed_by_default(pair: Pair) -> None:
    answers = await asyncio.gather(*(pair.proxy.post(UNSEEDED) for _ in range(8)))
    assert {(answer.cache, answer.reason) for answer in answers} == {("BYPASS", "unseeded")}
    assert len({answer.body for answer in answers}) == 8
    assert pair.mb.count == 8
    assert all("seed" not in received.body for received in pair.mb.received)


@pytest.mark.parametrize("none", [None, -1])
async def test_no_seed_is_no_seed_however_it_is_spelled(pair: Pair, none: int | None) -> None:
    for _ in range(2):
        answer = await pair.proxy.post({**UNSEEDED, "seed": none})
        assert (answer.cache, answer.reason) == ("BYPASS", "unseeded")


async def test_a_pinned_seed_is_sent_told_and_the_same_each_time(pinning: Proxy, mb: MockBackend) -> None:
    first, again = await pinning.post(UNSEEDED), await pinning.post(UNSEEDED)
    assert (first.cache, again.cache) == ("MISS", "HIT")
    assert first.body == again.body
    assert mb.received[0].body["seed"] == seed_told(first) == seed_told(again)
    assert 0 <= seed_told(first) < 2**63 - 2**16


async def test_a_pinned_seed_follows_from_the_request_alone(pinning: Proxy, make_proxy: MakeProxy) -> None:
    """Another proxy, another order of members, an explicit default: the same seed. Another prompt: another seed."""
    other = await make_proxy(settings={"cache.unseeded": "pin"})
    first = await pinning.post(UNSEEDED)
    same = await other.post({**dict(reversed(UNSEEDED.items())), "top_p": 1.0, "seed": None, "user": "u"})
    assert (seed_told(same), same.key) == (seed_told(first), first.key)
    changed = await other.post({**UNSEEDED, "temperature": 0.9})
    assert seed_told(changed) != seed_told(first)


async def test_pinning_leaves_a_clients_seed_and_greedy_requests_alone(pinning: Proxy, mb: MockBackend) -> None:
    for body, seed in (({**UNSEEDED, "seed": 0}, 0), ({**UNSEEDED, "temperature": 0}, None)):
        answer = await pinning.post(body)
        assert (answer.cache, answer.headers.get("x-samewise-seed")) == ("MISS", None)
        assert mb.received[-1].body.get("seed") == seed


async def test_samples_have_seeds_and_entries_of_their_own(pinning: Proxy, mb: MockBackend) -> None:
    first = [await pinning.post(UNSEEDED, headers=sample(number)) for number in range(1, 9)]
    second = [await pinning.post(UNSEEDED, headers=sample(number)) for number in range(1, 9)]
    assert [answer.cache for answer in second] == ["HIT"] * 8
    assert [answer.body for answer in second] == [answer.body for answer in first]
    for of_each in ({answer.body for answer in first}, {answer.key for answer in first}, set(map(seed_told, first))):
        assert len(of_each) == 8
    assert mb.count == 8
    unnumbered = await pinning.post(UNSEEDED)
    zeroth = await pinning.post(UNSEEDED, headers=sample(0))
    assert unnumbered.cache == "MISS"
    assert (zeroth.cache, zeroth.key) == ("HIT", unnumbered.key)


async def test_a_sample_of_a_seeded_request_is_an_entry_of_its_own(pair: Pair) -> None:
    body = {**UNSEEDED, "seed": 11}
    plain, numbered = await pair.proxy.post(body), await pair.proxy.post(body, headers=sample(1))
    assert (plain.cache, numbered.cache) == ("MISS", "MISS")
    assert {received.body["seed"] for received in pair.mb.received} == {11}


@pytest.mark.parametrize("number", ["x", "-1", "1.5", ""])
async def test_a_sample_that_is_no_number_is_refused(pair: Pair, number: str) -> None:
    answer = await pair.proxy.post({**UNSEEDED, "seed": 12}, headers={"x-samewise-sample": number})
    assert answer.status == 400
    assert "x-samewise-sample" in answer.json()["error"]["message"]
    assert pair.mb.count == 0


async def test_recording_keeps_the_first_answer_without_a_seed(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings={"cache.unseeded": "record"})
    first, again = await proxy.post(UNSEEDED), await proxy.post(UNSEEDED)
    assert (first.cache, again.cache) == ("MISS", "HIT")
    assert first.body == again.body
    assert "x-samewise-seed" not in first.headers
    assert "seed" not in mb.received[0].body
    other = await proxy.post(UNSEEDED, headers=sample(1))
    assert (other.cache, other.body == first.body) == ("MISS", False)
    seeded = await proxy.post({**UNSEEDED, "seed": 7})
    assert seeded.cache == "MISS"


def seeds_of(body: dict[str, Any], _: int) -> str:
    return str(body.get("seed"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_several_choices_are_one_entry_with_one_seed(pinning: Proxy, mb: MockBackend, path: str) -> None:
    """The seed that is told is the first choice's; vLLM runs choice i with seed + i."""
    mb.text = seeds_of
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "tell me"}
    body = {"model": "m", "temperature": 1, "max_tokens": 16, **prompt}
    three = await pinning.post({**body, "n": 3}, path=path)
    again = await pinning.post({**body, "n": 3}, path=path)
    assert (three.cache, again.cache) == ("MISS", "HIT")
    assert three.body == again.body
    assert len(three.json()["choices"]) == 3
    assert mb.received[0].body["seed"] == seed_told(three)
    assert mb.received[0].body["n"] == 3
    one = await pinning.post({**body, "n": 1}, path=path)
    assert one.cache == "MISS"
    assert seed_told(one) != seed_told(three)


async def test_each_prompt_of_a_list_has_its_own_pinned_seed_and_entry(pinning: Proxy, mb: MockBackend) -> None:
    mb.text = seeds_of
    body = {"model": "m", "temperature": 1, "max_tokens": 16}
    both = await pinning.post({**body, "prompt": ["a", "b"]}, path=COMPLETIONS)
    alone = [await pinning.post({**body, "prompt": prompt}, path=COMPLETIONS) for prompt in ("a", "b")]
    assert [answer.cache for answer in alone] == ["HIT", "HIT"]
    assert [choice["text"] for choice in both.json()["choices"]] == [str(seed_told(answer)) for answer in alone]
    assert seed_told(alone[0]) != seed_told(alone[1])
    assert mb.count == 2


@pytest.mark.parametrize("pinned", [True, False])
async def test_streams_are_pinned_alike(pinning: Proxy, mb: MockBackend, pinned: bool) -> None:
    body = UNSEEDED if pinned else {**UNSEEDED, "seed": 5}
    whole, stream = await pinning.post(body), await pinning.post({**body, "stream": True})
    assert (whole.cache, stream.cache) == ("MISS", "HIT")
    assert whole.text == stream.text
    assert whole.headers.get("x-samewise-seed") == stream.headers.get("x-samewise-seed")
    assert ("x-samewise-seed" in whole.headers) == pinned
    assert mb.count == 1


async def test_an_api_without_seeds_is_never_pinned(pinning: Proxy, mb: MockBackend) -> None:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 16, "temperature": 1}
    for _ in range(2):
        answer = await pinning.post(body, path="/v1/messages")
        assert (answer.cache, answer.reason) == ("BYPASS", "unseeded")
    assert all("seed" not in received.body for received in mb.received)
