"""Answers that are no whole ones, and clients that are not of today: never worse than without the proxy."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.cases.conftest import Pair
from tests.support.bodies import Body, fresh
from tests.support.mock_backend import DONE, Script, sse
from tests.support.wire import Wire, request

ODD: dict[str, tuple[bytes, str]] = {
    "a page": (b"<html>busy</html>", "text/html"),
    "nothing": (b"", "application/json"),
    "a list": (b"[]", "application/json"),
    "half of it": (b'{"choices":[{"index":0,"mess', "application/json"),
    "no number": (b'{"id":NaN}', "application/json"),
    "nested too deeply": (b"[" * 5000 + b"]" * 5000, "application/json"),
    "no end": (b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":null}]}', "application/json"),
    "a stream that says it is none": (sse({"choices": []}) + DONE, "text/plain"),
}


@pytest.mark.parametrize("changes", [{}, {"stream": True}, {"stream": True, "seed": None, "temperature": 1}], ids=str)
@pytest.mark.parametrize("name", ODD)
async def test_what_is_no_whole_answer_comes_as_it_is_and_is_not_kept(pair: Pair, name: str, changes: Body) -> None:
    body, kind = ODD[name]
    asked = fresh(**changes)
    pair.mb.when(asked["messages"][0]["content"], Script(status=200, body=body, headers={"Content-Type": kind}))
    for _ in range(2):
        answer = await pair.proxy.post(asked)
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"].startswith(kind)
        assert answer.cache in {"MISS", "BYPASS"}


async def test_of_several_prompts_one_without_a_readable_answer_is_given_as_it_is(pair: Pair) -> None:
    pair.mb.rules.insert(0, lambda got: Script(status=200, body=b"<html>busy</html>") if b'"lost"' in got.raw else None)
    asked = {"model": "m", "prompt": ["found", "lost"], "temperature": 0, "seed": 1}
    answer = await pair.proxy.post(asked, path="/v1/completions")
    assert (answer.status, answer.body) == (200, b"<html>busy</html>")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["x"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ],
)
async def test_an_api_without_streams_answers_whoever_asks_for_one(pair: Pair, path: str, asked: Body) -> None:
    plain = await pair.proxy.post({"model": "m", **asked}, path=path)
    pair.mb.always(Script(status=200, body=plain.body))
    for cache in ("MISS", "HIT"):
        answer = await pair.proxy.post({"model": "m", **asked, "stream": True}, path=path)
        assert (answer.status, answer.cache, answer.body) == (200, cache, plain.body)


@pytest.mark.parametrize("options", [[], "x", {"include_usage": "yes"}], ids=str)
async def test_stream_options_that_are_none_are_the_backends_to_judge(pair: Pair, options: Any) -> None:
    refusal = b'{"error":{"message":"stream_options should be an object"}}'
    pair.mb.always(Script(status=400, body=refusal))
    answer = await pair.proxy.post(asked := fresh(stream=True, stream_options=options))
    assert (answer.status, answer.body, answer.headers["x-samewise-reason"]) == (400, refusal, "malformed")
    assert pair.mb.received[-1].body == asked


async def test_a_client_of_http_1_0_gets_streams_that_end_with_their_connection(pair: Pair) -> None:
    asked = json.dumps(fresh(stream=True)).encode()
    heard = []
    for _ in range(2):
        async with Wire.to(pair.proxy.address) as wire:
            await wire.send(request(asked).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
            head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 ")
        assert b"transfer-encoding" not in head.lower()
        heard.append(body)
    assert heard[0] == heard[1]
    assert heard[0].startswith(b"data: {")
    assert heard[0].endswith(DONE)


async def test_anthropics_client_is_told_why_a_stream_was_cut(pair: Pair) -> None:
    start = {"type": "message_start", "message": {"id": "x", "type": "message", "role": "assistant", "content": []}}
    pieces = [b"event: message_start\n" + sse(start)]
    pair.mb.rules.insert(0, lambda got: Script(sse=pieces, end="reset") if got.path.endswith("/messages") else None)
    client = anthropic.AsyncAnthropic(base_url=pair.proxy.url, api_key="k", max_retries=0)
    with pytest.raises(anthropic.APIStatusError, match="cut"):
        async with client.messages.stream(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}]
        ) as stream:
            async for _ in stream:
                pass
    await client.close()
