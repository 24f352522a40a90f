from __future__ import annotations

import json
from typing import Any

import pytest

from samewise.core.controls import Controls
from samewise.core.errors import ProxyError
from samewise.core.families.registry import BY_NAME
from samewise.core.fingerprint import Environment
from samewise.core.plan import Snapshot
from samewise.core.reason import Reason
from samewise.core.request import parse, upstream_body
from tests.core.planning import B0, CHAT, OBSERVED, VLLM, family, key_of, planned, raw, reason_of

LIST = family("embeddings", sampled=False, together=True)
PROMPTS = family("completions")


@pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream": None}, {"user": "u", "metadata": {"a": 1}}])
def test_a_plain_request_goes_upstream_byte_for_byte(more: dict[str, Any]) -> None:
    sent = b" " + json.dumps({**B0, **more}, indent=1).encode() + b"\n"
    found = planned(sent)
    assert found.raw == sent
    assert upstream_body(found, CHAT, found.units, stream=False) == sent


def test_cache_is_heard_and_never_forwarded() -> None:
    found = planned({"cache": {"no-cache": True, "namespace": "n"}, **B0}, controls=Controls(no_store=True))
    assert found.controls == Controls(no_cache=True, no_store=True, namespace="n")
    assert json.loads(upstream_body(found, CHAT, found.units, stream=False)) == B0
    assert key_of({**B0, "cache": {}}) == key_of(B0)
    assert key_of({**B0, "cache": {"namespace": "n"}}) != key_of(B0)
    with pytest.raises(ProxyError):
        planned({**B0, "cache": 1})
    uncached = planned({"messages": [], "cache": {}})
    assert upstream_body(uncached, CHAT, uncached.units, stream=False) == b'{"messages":[]}'


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {**B0, "model": None},
        {**B0, "model": ""},
        {**B0, "model": 1},
        {**B0, "stream": "yes"},
        {**B0, "stream": 1},
        {**B0, "stream": True, "stream_options": []},
        {**B0, "stream": True, "stream_options": {"include_usage": 1}},
        {"remote": 1},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cant_be_understood_is_the_upstreams_to_judge(body: dict[str, Any], stream: bool) -> None:
    found = planned(body, environment=VLLM)
    assert found.units[0].reason is Reason.MALFORMED
    assert found.units[0].key is None
    assert upstream_body(found, CHAT, found.units, stream=stream) == raw(body)


def test_a_family_without_streams_never_streams_whatever_is_asked() -> None:
    found = planned({"model": "m", "input": "a", "stream": True}, of=BY_NAME["embeddings"], environment=VLLM)
    assert not found.stream
    assert found.units[0].key is not None


def test_delivery_is_no_part_of_the_key_but_travels() -> None:
    body = {"user": "u", **B0, "metadata": {"x": 1}}
    found = planned({**body, "top_p": None}, environment=VLLM)
    assert found.delivery == {"user": "u", "metadata": {"x": 1}}
    assert found.units[0].key == key_of(B0, environment=VLLM)
    sent = json.loads(upstream_body(found, CHAT, found.units, stream=False))
    assert sent["user"] == "u"
    assert sent["metadata"] == {"x": 1}
    assert next(iter(sent)) == "user"


def test_members_keep_their_places_and_what_is_added_comes_last() -> None:
    profile = Snapshot(profile="p", version=1, values={"top_p": 0.5, "min_p": 0.1})
    body = {"z": {"b": 1, "a": 2.0}, "user": "u", "min_p": None, **B0}
    found = planned(body, snapshot=profile)
    sent = upstream_body(found, CHAT, found.units, stream=False)
    assert list(json.loads(sent)) == [*body, "top_p"]
    assert b'"z":{"b":1,"a":2.0}' in sent
    assert b'"min_p":0.1' in sent


@pytest.mark.parametrize("include", [True, False, None, "absent"])
def test_one_entry_serves_stream_or_not_with_usage_or_not(include: Any) -> None:
    options = {} if include == "absent" else {"stream_options": {"include_usage": include}}
    found = planned({**B0, "stream": True, **options})
    assert found.stream
    assert found.include_usage is (include is True)
    assert found.units[0].key == key_of(B0)
    sent = json.loads(upstream_body(found, CHAT, found.units, stream=True))
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    plain = json.loads(upstream_body(found, CHAT, found.units, stream=False))
    assert plain == B0


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
def test_stream_options_of_what_is_no_stream_are_never_forwarded(options: Any) -> None:
    found = planned({**B0, "stream": False, "stream_options": options})
    assert not found.include_usage
    assert json.loads(upstream_body(found, CHAT, found.units, stream=False)) == {**B0, "stream": False}


def test_stream_options_that_change_the_content_have_an_entry_of_their_own() -> None:
    told = {"include_usage": True, "include_obfuscation": True}
    other = planned({**B0, "stream": True, "stream_options": told})
    assert other.units[0].key != key_of(B0)
    assert json.loads(upstream_body(other, CHAT, other.units, stream=True))["stream_options"] == told
    counted = {"include_usage": True, "continuous_usage_stats": True}
    running = planned({**B0, "stream": True, "stream_options": counted})
    assert running.units[0].key not in {key_of(B0), other.units[0].key}
    assert json.loads(upstream_body(running, CHAT, running.units, stream=True))["stream_options"] == counted
    assert key_of({**B0, "stream": False, "stream_options": told}) == key_of(B0)


def test_an_uncacheable_stream_is_asked_as_the_client_asked() -> None:
    body = {**B0, "temperature": 1, "seed": None, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    found = planned(body)
    assert found.units[0].reason is Reason.UNSEEDED
    assert upstream_body(found, CHAT, found.units, stream=True) == raw(body)
    profile = Snapshot(profile="p", version=1, values={"top_p": 0.5})
    filled = planned(body, snapshot=profile)
    assert json.loads(upstream_body(filled, CHAT, filled.units, stream=True)) == {**body, "top_p": 0.5}


def test_a_familys_refusal_is_the_reason() -> None:
    found = planned({**B0, "remote": 1, "items": ["a", "b"]}, environment=VLLM)
    assert [unit.reason for unit in found.units] == [Reason.REMOTE_MEDIA]
    assert upstream_body(found, CHAT, found.units, stream=False) == raw({**B0, "remote": 1, "items": ["a", "b"]})


def test_every_item_of_a_list_has_its_own_key() -> None:
    body = {"model": "m", "items": ["a", "b", "a"], "user": "u"}
    found = planned(body, of=LIST)
    first, second, third = found.units
    assert first.key == third.key == key_of({"model": "m", "items": "a"}, of=LIST)
    assert second.key != first.key
    assert found.together


def test_missing_items_are_asked_together_and_all_of_them_as_the_client_did() -> None:
    body = {"model": "m", "items": ["a", "b", "c"], "user": "u"}
    found = planned(body, of=LIST)
    assert upstream_body(found, LIST, found.units, stream=False) == raw(body)
    some = json.loads(upstream_body(found, LIST, [found.units[0], found.units[2]], stream=False))
    assert some == {**body, "items": ["a", "c"]}
    one = json.loads(upstream_body(found, LIST, [found.units[1]], stream=False))
    assert one == {**body, "items": "b"}


def test_prompts_are_asked_one_by_one() -> None:
    found = planned({**B0, "items": ["a", "b"], "stream": True}, of=PROMPTS)
    assert len(found.units) == 2
    for unit, item in zip(found.units, "ab", strict=True):
        sent = json.loads(upstream_body(found, PROMPTS, [unit], stream=True))
        assert sent == {**B0, "items": item, "stream": True, "stream_options": {"include_usage": True}}
        assert list(sent)[: len(B0)] == list(B0)


def test_each_prompt_is_pinned_to_a_seed_of_its_own() -> None:
    body = {**B0, "temperature": 1, "top_p": 1, "seed": None, "items": ["a", "b"]}
    seeds = [unit.seed for unit in planned(body, of=PROMPTS, unseeded="pin").units]
    assert None not in seeds
    assert len(set(seeds)) == 2


def test_an_empty_list_is_one_request() -> None:
    assert len(planned({"model": "m", "items": []}, of=LIST).units) == 1


def test_odd_texts_and_numbers_reach_the_upstream_as_they_are() -> None:
    body = rb'{"model":"m","a":"\ud800","seed":18446744073709551617,"temperature":0,"cache":{}}'
    found = planned(body)
    sent = json.loads(upstream_body(found, CHAT, found.units, stream=False))
    assert sent == {"model": "m", "a": "\ud800", "seed": 2**64 + 1, "temperature": 0}


def test_broken_bodies_are_refused() -> None:
    with pytest.raises(ProxyError):
        planned(b'{"model":"m","temperature":0,"temperature":1}')
    assert reason_of(B0, environment=OBSERVED) is None


_BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": ["a", "b"]},
    "embeddings": {"input": ["a", "b"]},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "responses": {"input": "hi", "store": False},
    "rerank": {"query": "q", "documents": ["a", "b"]},
    "score": {"text_1": "q", "text_2": "a"},
}


@pytest.mark.parametrize("environment", [OBSERVED, VLLM])
@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_family_is_planned_keyed_and_asked(name: str, environment: Environment) -> None:
    of = BY_NAME[name]
    body = {"model": "m", "temperature": 0, **_BODIES[name]}
    found = planned(body, of=of, environment=environment)
    assert [unit.reason for unit in found.units] == [None] * len(found.units)
    assert len({unit.key for unit in found.units}) == len(found.units)
    asked = [[unit] for unit in found.units]
    for units in [*asked, list(found.units)] if of.together or len(asked) == 1 else asked:
        sent = json.loads(upstream_body(found, of, units, stream=False))
        assert sent["model"] == "m"
        assert list(sent)[: len(body)] == list(body)
    assert parse(upstream_body(found, of, [found.units[0]], stream=False))["temperature"] == 0


def test_messages_can_only_be_repeated_when_greedy() -> None:
    body = {"model": "m", "temperature": 0.7, "seed": 5, **_BODIES["messages"]}
    for environment in (OBSERVED, VLLM):
        assert reason_of(body, of=BY_NAME["messages"], environment=environment) is Reason.UNSEEDED
