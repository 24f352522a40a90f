"""What streams are relayed, kept and replayed as, and what is never kept."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.cases.conftest import MakeProxy, Pair
from tests.support.bodies import Body, fresh
from tests.support.mock_backend import DONE, MockBackend, Script, sse
from tests.support.patience import ENOUGH
from tests.support.proxy import Answered, Proxy, until

BASE: Body = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(delta: Body, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """One event of a chat stream; `more` is of its choice."""
    return sse({**BASE, "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]})


def text(piece: str, index: int = 0) -> bytes:
    return chunk({"content": piece}, index=index)


def end(index: int = 0) -> bytes:
    return chunk({}, "stop", index)


def streamed(**changes: Any) -> Body:
    return fresh(stream=True, **changes)


async def read(proxy: Proxy, body: Body) -> tuple[str, list[str], bool]:
    """The cache's word, the events, and whether the response ended as HTTP ends one."""
    got: list[str] = []
    async with proxy.stream(body) as streaming:
        try:
            async for data in streaming.data():
                got.append(data)  # noqa: PERF401  (what came before the break is wanted)
        except aiohttp.ClientError:
            return streaming.headers["x-samewise-cache"], got, False
        return streaming.headers["x-samewise-cache"], got, True


def payloads(pieces: list[bytes]) -> list[str]:
    return [piece.decode().removeprefix("data: ").strip() for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "how"),
    [
        pytest.param([text("a"), text("b")[:40]], "reset", id="reset-in-an-event"),
        pytest.param([text("a"), end()], "cut", id="no-last-chunk"),
        pytest.param([text("a"), text("b")], "eof", id="neither-end"),
        pytest.param([text("a"), DONE], "eof", id="done-without-a-finish-reason"),
        pytest.param([text("a"), end()], "eof", id="a-finish-reason-without-done"),
        pytest.param([text("a"), text("b", 1), end(), DONE], "eof", id="one-choice-of-two-unfinished"),
        pytest.param([text("a"), sse({"error": {"message": "engine died"}}), DONE], "eof", id="an-error-then-done"),
        pytest.param([], "eof", id="nothing-at-all"),
    ],
)
async def test_a_stream_that_is_not_whole_is_never_kept_and_seen_to_be_short(
    pair: Pair, pieces: list[bytes], how: str
) -> None:
    body = streamed(n=2) if any(b'"index": 1' in piece for piece in pieces) else streamed()
    pair.mb.once(Script(sse=pieces, end=how))
    cache, got, whole = await read(pair.proxy, body)
    assert cache == "MISS"
    given = [piece for piece in payloads(pieces) if not piece.startswith("{") or piece.endswith("}")]
    assert [piece for piece in got if "error" not in piece] == [piece for piece in given if "error" not in piece]
    if "[DONE]" not in given:
        assert not whole or "[DONE]" not in got
    after = await pair.proxy.post(body)
    assert (after.cache, pair.mb.count) == ("MISS", 2)
    assert after.data()[-1] == "[DONE]"
    assert (await pair.proxy.post(body)).cache == "HIT"


async def test_a_body_that_is_cut_is_never_kept_and_never_looks_whole(pair: Pair) -> None:
    whole = json.dumps({**BASE, "choices": []}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    body = fresh()
    pair.mb.once(Script(wire=head + whole))
    answer = await pair.proxy.post(body)
    assert answer.status == 502
    assert (answer.cache, set(answer.json()["error"])) == ("ERROR", {"message", "type", "param", "code"})
    assert answer.headers["cache-status"] == "samewise; fwd=miss; fwd-status=200; detail=truncated"
    assert (await pair.proxy.post(body)).cache == "MISS"


def per_field(events: list[str]) -> tuple[dict[str, str], list[Any]]:
    """Texts of each field of the deltas, put together; and what choices and chunks say beside them."""
    joined: dict[str, str] = defaultdict(str)
    others = []
    for event in events[:-1]:
        value = json.loads(event)
        others.append({name: item for name, item in value.items() if name != "choices"})
        for choice in value["choices"]:
            for name, item in choice["delta"].items():
                joined[name] += str(item)
            others.append({name: item for name, item in choice.items() if name != "delta"})
    return dict(joined), others


async def test_every_field_of_a_stream_comes_back_known_or_not(pair: Pair) -> None:
    names = ("reasoning_content", "reasoning", "refusal", "x_vendor", "content")
    pieces = [chunk({"role": "assistant"})]
    pieces += [chunk({name: f"{name}-{at} "}, token_ids=[at]) for at in range(3) for name in names]
    pieces += [sse({**BASE, "system_fingerprint": "fp", "choices": []})]
    pieces += [chunk({}, "stop", stop_reason=151645), DONE]
    pair.mb.once(Script(sse=pieces))
    body = streamed()
    first, again = await pair.proxy.post(body), await pair.proxy.post(body)
    assert (first.cache, again.cache, pair.mb.count) == ("MISS", "HIT", 1)
    assert first.data() == payloads(pieces)
    assert per_field(again.data()) == per_field(first.data())
    assert set(per_field(again.data())[0]) == {"role", *names}


async def test_parallel_tool_calls_come_back_whole(pair: Pair) -> None:
    pieces = [chunk({"role": "assistant", "content": None})]
    arguments = ['{"city": "Zürich", "n": 1}', '{"city": "Tōkyō", "n": 2}']
    for at, name in enumerate(("first", "second")):
        call = {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append(chunk({"tool_calls": [call]}))
    for place in range(0, 30, 5):
        for at, whole in enumerate(arguments):
            if piece := whole[place : place + 5]:
                pieces.append(chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
    pieces += [chunk({}, "tool_calls"), DONE]
    pair.mb.once(Script(sse=pieces))
    body = streamed(tools=[{"type": "function", "function": {"name": "first"}}])

    def calls(answer: Answered) -> list[tuple[str, str, str]]:
        made: dict[int, list[str]] = {}
        for event in answer.data()[:-1]:
            for call in json.loads(event)["choices"][0]["delta"].get("tool_calls", []):
                known = made.setdefault(call["index"], [call.get("id", ""), call["function"].get("name", ""), ""])
                known[2] += call["function"]["arguments"]
        return [(made[at][0], made[at][1], made[at][2]) for at in sorted(made)]

    first, again = await pair.proxy.post(body), await pair.proxy.post(body)
    assert again.cache == "HIT"
    assert calls(again) == calls(first) == [("call_0", "first", arguments[0]), ("call_1", "second", arguments[1])]
    message = (await pair.proxy.post({**body, "stream": False})).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    told = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message["message"]["tool_calls"]
    ]
    assert told == calls(first)
    assert [json.loads(call[2])["n"] for call in told] == [1, 2]


async def test_a_replay_has_the_events_that_were_recorded(pair: Pair) -> None:
    pieces = [text("é漢😀 "[at % 4]) for at in range(200)] + [end(), DONE]
    pair.mb.once(Script(sse=pieces))
    body = streamed()
    first = await pair.proxy.post(body)
    async with pair.proxy.stream(body) as replay:
        got = [event async for event in replay.data()]
    assert replay.headers["x-samewise-cache"] == "HIT"
    assert got == first.data() == payloads(pieces)


async def test_events_are_relayed_as_they_come(pair: Pair) -> None:
    said: asyncio.Queue[int] = asyncio.Queue()
    heard = asyncio.Queue[None]()

    async def wait_for_reader(at: int) -> None:
        await said.put(at)
        await heard.get()

    pair.mb.once(Script(sse=[text("a"), text("b"), end(), DONE], sent=wait_for_reader))
    async with pair.proxy.stream(streamed()) as streaming:
        async for _ in streaming.data():
            await said.get()
            heard.put_nowait(None)
    assert streaming.ended


ASKED: list[Body] = [{"stream_options": {"include_usage": True}}, {"stream_options": {"include_usage": False}}, {}]


@pytest.mark.parametrize("read_with", ASKED, ids=["read-with", "read-without", "read-unsaid"])
@pytest.mark.parametrize("warm_with", [*ASKED, None], ids=["warm-with", "warm-without", "warm-unsaid", "warm-json"])
async def test_usage_is_for_those_who_ask(pair: Pair, warm_with: Body | None, read_with: Body) -> None:
    body = fresh()
    warmed = await pair.proxy.post(body if warm_with is None else {**body, "stream": True, **warm_with})
    again = await pair.proxy.post({**body, "stream": True, **read_with})
    assert (warmed.cache, again.cache) == ("MISS", "HIT")
    for answer, asked in ((warmed, warm_with), (again, read_with)):
        if asked is None:
            continue
        *events, done = answer.data()
        chunks = [json.loads(event) for event in events]
        assert done == "[DONE]"
        if asked == ASKED[0]:
            assert [at for at, value in enumerate(chunks) if not value["choices"]] == [len(chunks) - 1]
            assert chunks[-1]["usage"] == {"prompt_tokens": 9, "completion_tokens": 18, "total_tokens": 27}
        else:
            assert all(value["choices"] for value in chunks)
            assert all(value.get("usage") is None for value in chunks)


async def test_a_body_that_does_not_stream_is_sent_without_stream_options(pair: Pair) -> None:
    body = fresh(stream=False, stream_options={"include_usage": True})
    await pair.proxy.post(body)
    assert "stream_options" not in pair.mb.received[0].body


@pytest.mark.parametrize("warm", [False, True])
async def test_one_entry_serves_both_forms(pair: Pair, warm: bool) -> None:
    body = fresh(n=2)
    first = await pair.proxy.post({**body, "stream": warm})
    again = await pair.proxy.post({**body, "stream": not warm})
    assert (first.cache, again.cache, pair.mb.count) == ("MISS", "HIT", 1)
    whole, events = (again, first) if warm else (first, again)
    assert whole.headers["content-type"].startswith("application/json")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert whole.json()["object"] == "chat.completion"
    assert whole.json()["usage"]["completion_tokens"] == 18
    assert whole.text == events.text
    assert events.data()[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events.data()[:-1]]
    assert {value["id"] for value in chunks} == {whole.json()["id"]}
    assert {value["object"] for value in chunks} == {"chat.completion.chunk"}
    for at, choice in enumerate(whole.json()["choices"]):
        pieces = [each for value in chunks for each in value["choices"] if each["index"] == at]
        assert "".join(piece["delta"].get("content") or "" for piece in pieces) == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]


NOISE = [b": processing\n\n", b"retry: 3000\n\n", b"event: ping\n\n", b"id: 7\n\n", b":\n\n"]


async def test_keep_alives_of_the_upstream_are_no_events_and_not_kept(pair: Pair) -> None:
    pieces = [text("a"), *NOISE, text("b"), b": " + text("c"), *NOISE, end(), *NOISE, DONE]
    pair.mb.once(Script(sse=pieces))
    body = streamed()
    for cache in ("MISS", "HIT"):
        async with pair.proxy.stream(body) as streaming:
            assert streaming.headers["x-samewise-cache"] == cache
            blocks = [block async for block in streaming.blocks()]
        lines = [line for block in blocks for line in block.split("\n")]
        data = [line for line in lines if line.startswith("data:")]
        assert [json.loads(line[6:]) for line in data[:-1]], "each is JSON"
        assert data[-1] == "data: [DONE]"
        assert all(any(line.startswith("data:") for line in block.split("\n")) for block in blocks)
        if cache == "HIT":
            assert lines == data


async def test_the_official_client_lives_through_keep_alives(pair: Pair) -> None:
    begun = b"id: 1\n" + chunk({"role": "assistant"})
    pieces = [b": ping\n\n", begun, b": ping\n\n", *NOISE, text("a"), b": ping\n\n", text("b"), end(), DONE]
    pair.mb.once(Script(sse=pieces, gap=0.01))
    async with AsyncOpenAI(base_url=pair.proxy.url + "/v1", api_key="k", max_retries=0) as client:
        message = fresh()["messages"]
        texts = []
        for _ in range(2):
            stream = await client.chat.completions.create(model="m", messages=message, temperature=0, stream=True)
            texts.append([each.choices[0].delta.content async for each in stream])
    assert texts[0] == texts[1] == [None, "a", "b", None]


@pytest.mark.parametrize("size", [100_000, 200_000, 600_000, 5_000_000])
async def test_one_large_line_reaches_the_client_and_is_kept(pair: Pair, size: int) -> None:
    large, small = streamed(), streamed()
    pair.mb.when(large["messages"][0]["content"], Script(sse=[text("x" * size), end(), DONE]))
    pair.mb.when(small["messages"][0]["content"], Script(sse=[text("a"), text("b"), end(), DONE], gap=0.02))
    first, beside = await asyncio.gather(pair.proxy.post(large), pair.proxy.post(small))
    again = await pair.proxy.post(large)
    assert (first.cache, again.cache, beside.text) == ("MISS", "HIT", "ab")
    assert len(first.text) == len(again.text) == size


IDLE = 2.0
"""Seconds; a busy machine's own silences are shorter."""


@pytest_asyncio.fixture(loop_scope="session")
async def idle_proxy(make_proxy: MakeProxy) -> Proxy:
    """One that gives up on silence."""
    return await make_proxy(settings={"timeouts.idle": IDLE, "timeouts.first_byte": 2 * IDLE})


@pytest.mark.parametrize("pieces", [[], [text("a"), text("b"), text("c")], [text("a"), end()]], ids=["0", "3", "end"])
async def test_an_upstream_that_falls_silent_is_given_up(
    idle_proxy: Proxy, mb: MockBackend, pieces: list[bytes]
) -> None:
    body = streamed()
    mb.once(Script(sse=pieces, end="stall"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(ENOUGH):
        _, got, whole = await read(idle_proxy, body)
    assert loop.time() - began > IDLE - 0.1
    assert "[DONE]" not in got
    assert not whole or "error" in got[-1]

    async def upstream_is_free() -> bool:
        return mb.gone == 1 and await idle_proxy.metric("samewise_inflight") == 0

    await until(upstream_is_free)
    assert (await idle_proxy.post(body)).cache == "MISS"
    assert mb.count == 2


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
async def test_an_error_in_place_of_a_stream_is_an_error(pair: Pair, status: int) -> None:
    body = streamed()
    pair.mb.when(body["messages"][0]["content"], Script(status=status, headers={"Retry-After": "3600"}))
    for _ in range(2):
        answer = await pair.proxy.post(body)
        assert (answer.status, answer.cache) == (status, "ERROR")
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["retry-after"] == "3600"
        assert answer.json()["error"]["message"] == f"mock says {status}"
    assert pair.mb.count == 2


@pytest.mark.parametrize(
    "spoiled",
    [{"stream": "true"}, {"stream": 1, "stream_options": {"include_usage": True}}, {"stream": True, "model": None}],
    ids=["a word", "a number, with usage", "no model"],
)
async def test_what_only_the_upstream_can_read_comes_back_in_the_form_that_it_chose(pair: Pair, spoiled: Body) -> None:
    body = fresh(**spoiled)
    answer = await pair.proxy.post(body)
    assert (answer.cache, answer.headers["x-samewise-reason"]) == ("BYPASS", "malformed")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.endswith(DONE)
    assert (b'"usage"' in answer.body) == ("stream_options" in spoiled)
