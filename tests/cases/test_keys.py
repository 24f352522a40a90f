"""What is another question gets another answer; what is the same question gets the same one."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import Body, fresh, new_text, without
from tests.support.mock_backend import MockBackend, Script
from tests.support.patience import ENOUGH
from tests.support.proxy import CHAT, Answered
from tests.support.wire import Wire, chunked, request

EMBEDDINGS, COMPLETIONS = "/v1/embeddings", "/v1/completions"


async def each_its_own(pair: Pair, bodies: Sequence[Body], path: str = CHAT) -> list[Answered]:
    """Asked in turn, all miss and say something of their own; asked again, each gets its own back."""
    first = [await pair.proxy.post(body, path=path) for body in bodies]
    assert [answer.cache for answer in first] == ["MISS"] * len(bodies)
    again = [await pair.proxy.post(body, path=path) for body in bodies]
    assert [answer.cache for answer in again] == ["HIT"] * len(bodies)
    assert [answer.body for answer in again] == [answer.body for answer in first]
    assert len({answer.body for answer in first}) == len(bodies)
    assert len({answer.key for answer in first}) == len(bodies)
    assert pair.mb.count == len(bodies)
    return first


async def test_each_field_that_changes_the_answer_makes_another_entry(pair: Pair) -> None:
    body = fresh()
    changes: list[Body] = [
        {},
        {"max_tokens": 17},
        {"max_completion_tokens": 17},
        {"top_p": 0.9},
        {"n": 2},
        {"stop": ["x"]},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"logit_bias": {"5": 1}},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2},
        {"seed": 8},
        {"temperature": 0.1},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "none"},
    ]
    await each_its_own(pair, [{**body, **change} for change in changes])


async def test_fields_of_the_engine_and_unheard_of_ones_are_key_and_travel_unchanged(pair: Pair) -> None:
    body = fresh()
    changes: list[Body] = [
        {},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"min_tokens": 3},
        {"ignore_eos": True},
        {"stop_token_ids": [2]},
        {"skip_special_tokens": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"structured_outputs": {"regex": "a+"}},
        {"guided_json": {"type": "object", "properties": {"z": {}, "a": {}}}},
        {"zz_future": 1},
        {"zz_future": "1"},
        {"zz_future": {"deep": [1, None, {"b": 1, "a": 2}]}},
    ]
    await each_its_own(pair, [{**body, **change} for change in changes])
    for change, received in zip(changes, pair.mb.received, strict=True):
        assert json.dumps(change)[1:-1] in received.raw.decode()


async def test_a_temperature_that_is_left_out_is_the_default_and_not_zero(pair: Pair) -> None:
    bare = without(fresh(), "temperature", "seed")
    asked = [await pair.proxy.post(bare) for _ in range(2)]
    assert [(answer.cache, answer.reason) for answer in asked] == [("BYPASS", "unseeded")] * 2
    assert asked[0].text != asked[1].text
    greedy = {**bare, "temperature": 0, "seed": 7}
    first = await pair.proxy.post(greedy)
    assert first.cache == "MISS"
    assert first.text not in {answer.text for answer in asked}
    again = await pair.proxy.post(bare)
    assert again.cache == "BYPASS"
    assert again.text != first.text
    assert (await pair.proxy.post(greedy)).text == first.text


async def test_the_backends_own_defaults_are_part_of_the_key(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy()
    body = {**fresh(temperature=0.5), "seed": 7}
    first = await proxy.post(body)
    assert (first.cache, (await proxy.post(body)).text) == ("MISS", first.text)
    before = mb.manifest
    mb.become("b" * 32, generation_defaults={**before["generation_defaults"], "top_p": 0.5, "top_k": 20})
    await proxy.post(fresh())
    await _until_environment(proxy, "b" * 32)
    second = await proxy.post(body)
    assert second.cache == "MISS"
    assert second.text != first.text
    assert (await proxy.post(body)).text == second.text
    mb.manifest = before
    await proxy.post(fresh())
    await _until_environment(proxy, "a" * 32)
    back = await proxy.post(body)
    assert (back.cache, back.text) == ("HIT", first.text)


async def _until_environment(proxy: Any, identity: str) -> None:
    async with asyncio.timeout(ENOUGH):
        while (await proxy.post(fresh())).headers.get("x-samewise-environment") != identity:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while (answer := await proxy.post(fresh())).reason is not None:
            assert answer.status == 200
            await asyncio.sleep(0.02)


async def test_what_a_server_decides_unseen_is_not_cached(make_proxy: MakeProxy, mb: MockBackend) -> None:
    del mb.manifest["generation_defaults"]
    proxy = await make_proxy()
    vague = fresh(temperature=0.5)
    assert [(await proxy.post(vague)).reason for _ in range(2)] == ["unknown-defaults"] * 2
    spelt = {**vague, "top_p": 1, "top_k": 0, "min_p": 0}
    assert [(await proxy.post(spelt)).cache for _ in range(2)] == ["MISS", "HIT"]


async def test_the_order_inside_schemas_and_tools_counts_and_travels(pair: Pair) -> None:
    def schema(*names: str) -> Body:
        return {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    body = fresh()
    orders = [("zebra", "apple"), ("apple", "zebra")]
    formats = [
        {"type": "json_schema", "json_schema": {"name": "s", "schema": schema(*order)}, "zz": order[0]}
        for order in orders
    ]
    tools = [[{"type": "function", "function": {"name": "f", "parameters": schema(*order)}}] for order in orders]
    bodies = [{**body, "response_format": each} for each in formats] + [{**body, "tools": each} for each in tools]
    await each_its_own(pair, bodies)
    for sent, received in zip(bodies, pair.mb.received, strict=True):
        name = "response_format" if "response_format" in sent else "tools"
        assert json.dumps(sent[name]) in received.raw.decode()


async def test_six_spellings_of_one_question_are_one_entry(pair: Pair) -> None:
    body = fresh()
    plain = json.dumps(body).encode()
    text = json.dumps(body["messages"])
    spelt = [
        plain,
        json.dumps(dict(reversed(body.items()))).encode(),
        json.dumps(body, indent=4).encode(),
        plain.replace(text.encode(), text.replace('"hi ', '"h\\u0069 ').encode()),
        plain + b"\n",
        plain.replace(b'"seed": 7', b'"seed": 7.0'),
    ]
    assert len(set(spelt)) == 6
    answers = [await pair.proxy.post(each) for each in spelt]
    assert [answer.cache for answer in answers] == ["MISS"] + ["HIT"] * 5
    async with Wire.to(pair.proxy.address) as wire:
        await wire.send(request(chunked(plain, size=7), "Transfer-Encoding: chunked", length=False))
        heard = await wire.answer()
    assert heard.header("x-samewise-cache") == "HIT"
    assert {answer.body for answer in answers} == {heard.body}
    assert pair.mb.count == 1


@pytest.mark.parametrize("twice", [b'"temperature": 1', b'"messages": []', b'"seed": 8', b'"model": "other"'])
async def test_a_member_that_stands_twice_is_refused(pair: Pair, twice: bytes) -> None:
    body = fresh()
    plain = json.dumps(body).encode()
    answer = await pair.proxy.post(plain[:-1] + b", " + twice + b"}")
    assert answer.status == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert pair.mb.count == 0
    assert (await pair.proxy.post(body)).cache == "MISS"


async def test_a_member_that_stands_twice_deep_inside_is_refused_too(pair: Pair) -> None:
    text = new_text()
    raw = (
        b'{"model": "m", "temperature": 0, "seed": 7, "messages": [{"role": "user", "content": "%s", "content": "x"}]}'
    )
    answer = await pair.proxy.post(raw % text.encode())
    assert (answer.status, pair.mb.count) == (400, 0)


async def test_the_whole_history_is_the_question(pair: Pair) -> None:
    text = new_text()
    last = {"role": "user", "content": "how old is he?"}
    system, user = {"role": "system", "content": text}, {"role": "user", "content": "who is Ann?"}
    assistant = {"role": "assistant", "content": "a king"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "c", "content": "42"}
    history = [system, user, assistant, last]
    histories: list[list[Body]] = [
        history,
        [{**system, "content": text + "."}, user, assistant, last],
        [system, {**user, "content": "who is Bob?"}, assistant, last],
        [system, user, {**assistant, "content": "a queen"}, last],
        [system, user, {**assistant, "role": "user"}, last],
        [system, {**user, "name": "eve"}, assistant, last],
        [system, user, {"role": "assistant", "tool_calls": [call]}, tool, last],
        [system, user, {"role": "assistant", "tool_calls": [call]}, {**tool, "content": "43"}, last],
        [system, assistant, user, last],
        [user, system, assistant, last],
        [system, user, last],
    ]
    await each_its_own(pair, [fresh(messages=messages) for messages in histories])


def picture(data: bytes, **image: Any) -> Body:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url, **image}}


async def test_each_image_is_another_question(pair: Pair) -> None:
    words = {"type": "text", "text": new_text()}
    one, other = picture(b"x" * 63 + b"1"), picture(b"x" * 63 + b"2")
    contents = [
        [words, one],
        [words, other],
        [one, words],
        [words, picture(b"x" * 63 + b"1", detail="low")],
        [words, picture(b"x" * 63 + b"1", detail="high")],
        [words],
        [words, one, other],
        [words, other, one],
    ]
    await each_its_own(pair, [fresh(messages=[{"role": "user", "content": content}]) for content in contents])


async def test_two_thousand_images_have_an_answer_each(pair: Pair) -> None:
    chance = random.Random(12)
    words = {"type": "text", "text": new_text()}
    seen: dict[str, bytes] = {}
    keys: set[str | None] = set()
    gate = asyncio.Semaphore(50)

    async def ask(data: bytes, cache: str) -> None:
        async with gate:
            answer = await pair.proxy.post(fresh(messages=[{"role": "user", "content": [words, picture(data)]}]))
        assert answer.cache == cache
        keys.add(answer.key)
        assert seen.setdefault(answer.text, data) == data

    images = [chance.randbytes(64) for _ in range(2000)]
    await asyncio.gather(*(ask(image, "MISS") for image in images))
    assert (len(seen), len(keys), pair.mb.count) == (2000, 2000, 2000)
    await asyncio.gather(*(ask(image, "HIT") for image in images))
    assert (len(seen), len(keys), pair.mb.count) == (2000, 2000, 2000)


async def test_headers_that_trace_a_request_are_no_part_of_the_question(pair: Pair) -> None:
    body = fresh()
    first = await pair.proxy.post(body)
    for headers in (
        {"x-request-id": "another"},
        {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"},
        {"user-agent": "curl/8"},
        {"x-stainless-retry-count": "1", "x-stainless-lang": "python"},
        {"idempotency-key": "k"},
        {"accept": "text/plain", "accept-language": "de"},
        {"openai-organization": "o", "openai-project": "p"},
    ):
        answer = await pair.proxy.post(body, headers=headers)
        assert (answer.cache, answer.body) == ("HIT", first.body), headers
    assert pair.mb.count == 1


async def test_who_asks_is_delivery_as_the_documents_list_it(pair: Pair) -> None:
    from samewise.core.families.registry import BY_PATH

    body = fresh()
    first = await pair.proxy.post(body)
    values: Body = {"stream_options": None, "metadata": {"trace": "1"}, "store": False, "priority": 3}
    names = BY_PATH[CHAT].delivery - {"stream"}
    assert {"user", "metadata", "store", "safety_identifier"} <= names
    for name in sorted(names):
        answer = await pair.proxy.post({**body, name: values.get(name, "u-1")})
        assert (answer.cache, answer.key) == ("HIT", first.key), name
    assert (await pair.proxy.post({**body, "service_tier": "flex"})).cache == "MISS"


async def test_each_model_answers_under_its_own_name(pair: Pair) -> None:
    body = fresh()
    bodies = [{**body, "model": name} for name in ("m-small", "m-large", "m-x")]
    answers = await each_its_own(pair, bodies)
    assert [answer.json()["model"] for answer in answers] == ["m-small", "m-large", "m-x"]
    again = await pair.proxy.post({**bodies[2], "stream": True})
    assert again.cache == "HIT"
    assert {json.loads(data)["model"] for data in again.data() if data != "[DONE]"} == {"m-x"}


async def test_endpoints_do_not_share_entries_and_their_fields_count(pair: Pair) -> None:
    text = new_text()
    common: Body = {"model": "m", "temperature": 0, "seed": 7, "max_tokens": 4}
    texts: list[Body] = [
        {"prompt": text},
        {"prompt": [text]},
        {"prompt": [1, 2, len(text)]},
        {"prompt": text, "suffix": "!"},
        {"prompt": text, "echo": True},
        {"prompt": text, "best_of": 2},
    ]
    await each_its_own(pair, [{**common, **each} for each in texts], COMPLETIONS)
    both = {**common, "messages": [{"role": "user", "content": text}], "prompt": text}
    asked = [await pair.proxy.post(both, path=path) for path in (CHAT, COMPLETIONS)]
    assert [answer.cache for answer in asked] == ["MISS", "MISS"]
    assert [answer.json()["object"] for answer in asked] == ["chat.completion", "text_completion"]


async def test_other_paths_go_through_and_are_never_kept(pair: Pair) -> None:
    for path in ("/v1/tokenize", "/v1/audio/speech", "/v1/chat/completions/", "/v1//chat/completions", "/other"):
        answers = [await pair.proxy.post(fresh(), path=path) for _ in range(2)]
        assert [(answer.status, answer.cache, answer.key) for answer in answers] == [(404, "ERROR", None)] * 2
        assert answers[0].json() == {"detail": "Not Found"}
    echoed = await pair.proxy.request("POST", "/echo", body=b'{"a": 1, "a": 2}')
    assert (echoed.body, echoed.cache, echoed.reason) == (b'{"a": 1, "a": 2}', "BYPASS", "uncached-path")


async def test_embeddings_come_in_the_type_that_was_asked_for(pair: Pair) -> None:
    body: Body = {"model": "m", "input": new_text()}
    asked: list[Body] = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 8}]
    first: list[Any] = []
    for again in (False, True):
        for at, change in enumerate(asked):
            answer = await pair.proxy.post({**body, **change}, path=EMBEDDINGS)
            vector = answer.json()["data"][0]["embedding"]
            assert isinstance(vector, str) == (change.get("encoding_format") == "base64")
            if again:
                assert (answer.cache, vector) == ("HIT", first[at])
            else:
                first.append(vector)
    floats = struct.unpack("<16f", base64.b64decode(first[2]))
    assert len(first[0]) == len(first[1]) == len(floats) == 16
    assert len(first[3]) == 8


async def test_float_and_base64_of_one_server_agree(pair: Pair) -> None:
    vector = [0.1, -2.5, 3.25, 1e-7]
    packed = base64.b64encode(struct.pack("<4f", *vector)).decode()

    def answer(embedding: Any) -> Script:
        data = [{"object": "embedding", "index": 0, "embedding": embedding}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return Script(body={"object": "list", "model": "m", "data": data, "usage": usage})

    pair.mb.when("base64", answer(packed))
    pair.mb.when('"float"', answer(vector))
    body: Body = {"model": "m", "input": new_text()}
    for _ in range(2):
        floats = (await pair.proxy.post({**body, "encoding_format": "float"}, path=EMBEDDINGS)).json()
        coded = (await pair.proxy.post({**body, "encoding_format": "base64"}, path=EMBEDDINGS)).json()
        unpacked = struct.unpack("<4f", base64.b64decode(coded["data"][0]["embedding"]))
        assert unpacked == pytest.approx(floats["data"][0]["embedding"], abs=1e-6)
    assert pair.mb.count == 2


async def test_each_part_of_the_tools_is_key(pair: Pair) -> None:
    def tool(name: str, description: str = "does it", **more: Any) -> Body:
        parameters = {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters, **more},
        }

    body = fresh(tools=[tool("f"), tool("g")])
    chosen = {"type": "function", "function": {"name": "f"}}
    changes: list[Body] = [
        {},
        {"tools": [tool("g"), tool("f")]},
        {"tools": [tool("f", "does it!"), tool("g")]},
        {"tools": [tool("f", strict=True), tool("g")]},
        {"parallel_tool_calls": False},
        {"tool_choice": chosen},
        {"tool_choice": "required"},
        {"prediction": {"type": "content", "content": "x"}},
    ]
    await each_its_own(pair, [{**body, **change} for change in changes])


async def test_seeds_are_told_apart_to_the_last_digit(pair: Pair) -> None:
    body = fresh(temperature=0.5)
    seeds = [0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64]
    await each_its_own(pair, [{**body, "seed": seed} for seed in seeds])
    assert [received.body["seed"] for received in pair.mb.received] == seeds


@pytest.mark.parametrize("seed", [-1, None])
async def test_a_seed_that_means_none_is_no_seed(pair: Pair, seed: int | None) -> None:
    body = fresh(temperature=0.5, seed=seed)
    answers = [await pair.proxy.post(body) for _ in range(2)]
    assert [(answer.cache, answer.reason) for answer in answers] == [("BYPASS", "unseeded")] * 2
    assert answers[0].text != answers[1].text


async def test_a_seed_that_the_backend_refuses_is_refused_and_forgotten(pair: Pair) -> None:
    told = {"error": {"message": "seed must be an integer", "type": "BadRequestError", "param": "seed", "code": 400}}
    pair.mb.when('"seed": 7.5', Script(status=400, body=told))
    pair.mb.when('"seed": 18446744073709551616', Script(status=400, body=told))
    body = fresh(temperature=0.5)
    for seed in (7.5, 2**64):
        refused = [await pair.proxy.post({**body, "seed": seed}) for _ in range(2)]
        assert [(answer.status, answer.json()) for answer in refused] == [(400, told)] * 2
    assert pair.mb.count == 4
    assert [(await pair.proxy.post(body)).cache for _ in range(2)] == ["MISS", "HIT"]


async def test_thirty_seeds_are_thirty_samples(pair: Pair) -> None:
    body = fresh(temperature=1)
    await each_its_own(pair, [{**body, "seed": seed} for seed in range(1, 31)])


async def test_thirty_unseeded_at_once_are_thirty_samples(pair: Pair) -> None:
    body = without(fresh(temperature=1), "seed")
    gate = asyncio.Event()
    pair.mb.always(Script(gate=gate))
    asking = [asyncio.create_task(pair.proxy.post(body)) for _ in range(30)]
    await pair.mb.arrived(30)
    gate.set()
    answers = await asyncio.gather(*asking)
    assert len({answer.text for answer in answers}) == 30
    assert {answer.cache for answer in answers} == {"BYPASS"}
