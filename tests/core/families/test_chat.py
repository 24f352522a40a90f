"""Chat: what is recorded of a stream or a body can be told as the other, and nothing half is whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samewise.core.answer import DONE, Event, Usage
from samewise.core.families.chat import FAMILY
from samewise.core.reason import Reason
from tests.core.families.support import body, chunk, replay, stream, usage_chunk, values

COMPLETE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "system_fingerprint": "fp",
    "service_tier": None,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Grüße an alle in der Runde", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [1, 2, 3],
        }
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
    "prompt_token_ids": [9, 8],
    "x_vendor": {"deep": [1, {"a": "b"}]},
}
TOOL_STREAM = stream(
    chunk({"role": "assistant", "content": ""}),
    chunk(
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]}
    ),
    chunk(
        {"tool_calls": [{"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": ""}}]}
    ),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"x": '}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "", "function": {"name": None, "arguments": '{"y'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk({"tool_calls": [{"index": 1, "function": {"arguments": '": 2}'}}]}),
    chunk(finish_reason="tool_calls"),
)


def told(answer: Any) -> Any:
    return json.loads(FAMILY.to_body(answer))


def test_body_survives_being_told_as_events() -> None:
    assert told(replay(FAMILY.to_events(body(COMPLETE)))) == COMPLETE


def test_events_of_a_body_are_a_stream_that_clients_expect() -> None:
    from openai.types.chat import ChatCompletionChunk

    events = FAMILY.to_events(body(COMPLETE))
    chunks = values(events)
    for value in chunks:
        ChatCompletionChunk.model_validate(value)
    assert {(value["id"], value["created"], value["model"]) for value in chunks} == {("chatcmpl-1", 5, "m")}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    texts = [value["choices"][0]["delta"].get("content") for value in chunks[1:] if value["choices"]]
    assert len([text for text in texts if text]) >= 2
    assert "".join(filter(None, texts)) == "Grüße an alle in der Runde"
    assert [value["choices"] for value in chunks if value.get("usage")] == [[]]
    assert events[-1].data == DONE
    assert FAMILY.failure(replay(events), {}) is None


def test_interleaved_tool_calls_are_put_together() -> None:
    from openai.types.chat import ChatCompletion

    answer = told(TOOL_STREAM)
    ChatCompletion.model_validate(answer)
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y": 2}'}},
    ]
    assert answer["object"] == "chat.completion"
    again = told(replay(FAMILY.to_events(body(answer))))
    assert again == answer


def test_a_name_that_is_repeated_in_every_chunk_is_not_doubled() -> None:
    call = {"index": 0, "id": "a", "type": "function"}
    parts = [
        chunk({"tool_calls": [{**call, "function": {"name": "f", "arguments": text}}]}) for text in ('{"a"', ":1}")
    ]
    answer = told(stream(*parts, chunk(finish_reason="tool_calls")))
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]


def test_unknown_fields_of_a_stream_are_in_the_body() -> None:
    answer = told(
        stream(
            {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2], "x_top": "once"},
            {
                **chunk({"reasoning_content": "be", "reasoning": "r", "x_vendor": "ven"}, token_ids=[5]),
                "x_top": "twice",
            },
            chunk({"reasoning_content": "cause", "refusal": "no", "x_vendor": "dor"}, token_ids=[6, 7]),
            chunk({"content": "yes"}, logprobs={"content": [{"token": "y", "logprob": -1.0}]}),
            chunk({"content": "!"}, logprobs={"content": [{"token": "!", "logprob": -2.0}]}),
            {**chunk(finish_reason="stop", stop_reason=13), "system_fingerprint": "fp", "obfuscation": "xyz"},
        )
    )
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "yes!",
                "reasoning_content": "because",
                "reasoning": "r",
                "x_vendor": "vendor",
                "refusal": "no",
            },
            "token_ids": [5, 6, 7],
            "logprobs": {"content": [{"token": "y", "logprob": -1.0}, {"token": "!", "logprob": -2.0}]},
            "finish_reason": "stop",
            "stop_reason": 13,
        }
    ]
    assert answer["prompt_token_ids"] == [1, 2]
    assert answer["system_fingerprint"] == "fp"
    assert answer["x_top"] == "twice"
    assert "obfuscation" not in answer


def test_halves_of_a_surrogate_pair_in_two_chunks_become_one_character() -> None:
    halves = [Event(json.dumps(chunk({"content": half})).encode()) for half in ("\ud83d", "\ude00")]
    rest = stream(chunk(finish_reason="stop")).events
    assert told(replay([*halves, *rest]))["choices"][0]["message"]["content"] == "😀"


def test_tokens_stay_with_their_piece_of_the_text() -> None:
    tokens = ["Hel", "lo", " wor", "ld", " and", " all", " its", " seas"]
    logprobs = {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens], "refusal": None}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(tokens)},
        "logprobs": logprobs,
        "token_ids": list(range(len(tokens))),
        "finish_reason": "stop",
    }
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    events = FAMILY.to_events(body(answer))
    pieces = [value["choices"][0] for value in values(events) if value["choices"][0]["delta"].get("content")]
    assert len(pieces) >= 2
    for piece in pieces:
        named = [item["token"] for item in piece["logprobs"]["content"]]
        assert "".join(named) == piece["delta"]["content"]
        assert [tokens[at] for at in piece["token_ids"]] == named
    assert told(replay(events)) == answer


def test_tokens_that_do_not_make_up_the_text_come_all_with_its_last_piece() -> None:
    tokens = ("<t>", "So", "me", "th", "ing", " el", "se", " to", " say", ".")
    logprobs = {"content": [{"token": token, "logprob": -0.5} for token in tokens]}
    choice: dict[str, Any] = {"index": 0}
    choice["message"] = {"role": "assistant", "content": "Something else to say, as it was cleaned"}
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice | {"logprobs": logprobs}],
    }
    events = FAMILY.to_events(body(answer))
    told_by = [value["choices"][0] for value in values(events) if value["choices"][0].get("logprobs")]
    assert [part["logprobs"] for part in told_by] == [logprobs]
    again = told(replay(events))["choices"][0]
    assert (again["message"]["content"], again["logprobs"]) == (choice["message"]["content"], logprobs)


def test_content_in_parts_survives() -> None:
    parts = [{"type": "text", "text": "a"}]
    choice = {"index": 0, "message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    assert told(replay(FAMILY.to_events(body(answer)))) == answer


word = st.text(st.characters(codec="utf-8"), max_size=60)
plain = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | word
)
vendor = st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
calls = st.builds(
    lambda number, name, text: {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    },
    st.integers(0, 9),
    st.text("fgh", min_size=1, max_size=3),
    word,
)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | word)}
    for name in ("reasoning_content", "reasoning", "refusal"):
        if draw(st.booleans()):
            message[name] = draw(st.none() | word)
    if draw(st.booleans()):
        message["x_vendor"] = draw(vendor)
    if draw(st.booleans()):
        message["tool_calls"] = draw(st.lists(calls, min_size=1, max_size=3))
        message["content"] = message["content"] or None
    return message


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    answer["choices"] = []
    for index in range(draw(st.integers(1, 3))):
        choice = {
            "index": index,
            "message": draw(messages()),
            "finish_reason": draw(st.sampled_from(["stop", "length"])),
        }
        if draw(st.booleans()):
            choice["logprobs"] = draw(st.none() | st.just({"content": [{"token": "t", "logprob": -1.5}]}))
        if draw(st.booleans()):
            choice["token_ids"] = draw(st.lists(st.integers(0, 9)))
        if draw(st.booleans()):
            choice["stop_reason"] = draw(st.none() | st.integers(0, 9) | word)
        answer["choices"].append(choice)
    if draw(st.booleans()):
        answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 2}
    if draw(st.booleans()):
        answer["system_fingerprint"] = draw(st.none() | st.just("fp"))
    if draw(st.booleans()):
        answer["x_top"] = draw(vendor)
    return answer


@settings(max_examples=200, deadline=None)
@given(completions())
def test_any_body_survives_being_told_as_events(answer: dict[str, Any]) -> None:
    events = FAMILY.to_events(body(answer))
    assert told(replay(events)) == answer
    assert FAMILY.failure(replay(events), {"n": len(answer["choices"])}) is None
    for choice in answer["choices"]:
        said = [part for value in values(events) for part in value["choices"] if part["index"] == choice["index"]]
        for name in ("content", "reasoning_content", "reasoning", "refusal"):
            joined = "".join(part["delta"].get(name) or "" for part in said)
            assert joined == (choice["message"].get(name) or "")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["content", "reasoning", "x_vendor"]), word), max_size=12))
def test_any_stream_says_the_same_after_its_body_is_told_as_events(parts: list[tuple[int, str, str]]) -> None:
    chunks = [chunk({name: text}, index=index, token_ids=[len(text)]) for index, name, text in parts]
    ends = [chunk(index=index, finish_reason="stop") for index in (0, 1)]
    first = told(stream(*chunks, *ends))
    assert told(replay(FAMILY.to_events(body(first)))) == first
    for index in (0, 1):
        for name in ("content", "reasoning", "x_vendor"):
            joined = "".join(text for at, member, text in parts if (at, member) == (index, name))
            assert (first["choices"][index]["message"].get(name) or "") == joined


CUT = {
    "no [DONE]": stream(chunk({"content": "a"}, finish_reason="stop"), end=False),
    "no finish reason": stream(chunk({"content": "a"})),
    "nothing at all": stream(end=False),
    "only [DONE]": stream(),
    "one of two unfinished": stream(chunk({"content": "a"}, finish_reason="stop"), chunk({"content": "b"}, index=1)),
    "body cut": body(COMPLETE).__class__(form="json", body=json.dumps(COMPLETE).encode()[:-9]),
    "body without finish": body({**COMPLETE, "choices": [{"index": 0, "message": {}, "finish_reason": None}]}),
    "body without choices": body({**COMPLETE, "choices": []}),
}


@pytest.mark.parametrize("case", CUT)
def test_a_cut_answer_is_truncated(case: str) -> None:
    assert FAMILY.failure(CUT[case], {"n": 2} if "two" in case else {}) == Reason.TRUNCATED


FAILED = {
    "error event before [DONE]": stream(chunk({"content": "a"}, finish_reason="stop"), {"error": {"message": "gone"}}),
    "event named error": replay([Event(b'{"message":"x"}', "error"), Event(DONE)]),
    "error in a body": body({"error": {"message": "no"}}),
    "error object": body({"object": "error", "message": "no"}),
    "finish reason error": stream(chunk({"content": "a"}, finish_reason="error")),
    "finish reason abort": body({**COMPLETE, "choices": [{"index": 0, "message": {}, "finish_reason": "abort"}]}),
    "data that is no JSON": replay([Event(b"oops"), *stream(chunk(finish_reason="stop")).events]),
    "more choices than asked for": body({**COMPLETE, "choices": COMPLETE["choices"] * 2}),
}


@pytest.mark.parametrize("case", FAILED)
def test_a_failed_answer_is_an_upstream_error(case: str) -> None:
    assert FAMILY.failure(FAILED[case], {}) == Reason.UPSTREAM_ERROR


def test_whole_answers_are_whole() -> None:
    assert FAMILY.failure(body(COMPLETE), {}) is None
    assert FAMILY.failure(TOOL_STREAM, {"n": None}) is None
    two = stream(chunk({"content": "a"}, finish_reason="length"), chunk({}, index=1, finish_reason="stop"))
    assert FAMILY.failure(two, {"n": 2}) is None
    assert FAMILY.failure(two, {"n": 3}) == Reason.TRUNCATED


SPELLINGS = (
    {"usage": None, "choices": [{"index": 0, "delta": {"content": '"usage":null}'}}]},
    {"choices": [{"index": 0, "delta": {"content": 'a","usage":null}'}}], "usage": None},
    {"choices": [{"index": 0, "delta": {"x": {"usage": None}}}], "usage": {"prompt_tokens": 1}},
    {"choices": [{"index": 0, "delta": {"x": {"a": 1, "usage": None}}}]},
)


@pytest.mark.parametrize("value", SPELLINGS)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_usage_is_taken_out_for_those_who_did_not_ask_and_nothing_else(value: Any, separators: tuple[str, str]) -> None:
    event = Event(json.dumps(value, separators=separators).encode())
    [seen] = FAMILY.visible([event], False)
    assert json.loads(seen.data) == {name: item for name, item in value.items() if name != "usage"}
    assert FAMILY.visible([event], True) == [event]


EVENTS = st.builds(
    Event,
    st.sampled_from([json.dumps(value).encode() for value in (*SPELLINGS, chunk({"content": "a"}), usage_chunk())])
    | st.sampled_from([DONE, b"", b'{"a":\n1}', b'{"usage":\nnull}', b"no JSON"]),
    st.sampled_from([None, None, None, "ping", "error"]),
)


@given(st.lists(EVENTS, max_size=8), st.booleans())
def test_what_is_visible_of_many_is_what_is_visible_of_each(events: list[Event], include_usage: bool) -> None:
    each = [seen for event in events for seen in FAMILY.visible([event], include_usage)]
    assert list(FAMILY.visible(events, include_usage)) == each


def test_events_without_usage_are_the_same_object() -> None:
    event = Event(json.dumps(chunk({"content": "what is usage?"})).encode())
    assert FAMILY.visible([event], False) == [event]
    assert FAMILY.visible([Event(DONE)], False) == [Event(DONE)]


def test_a_usage_chunk_is_seen_once_by_those_who_asked_and_by_no_other() -> None:
    answer = stream(chunk({"content": "a"}, finish_reason="stop"), usage_chunk())
    asked = list(FAMILY.visible(answer.events, True))
    silent = list(FAMILY.visible(answer.events, False))
    assert [value["usage"] for value in values(asked) if value.get("usage")] == [
        {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    ]
    assert all(value["choices"] and "usage" not in value for value in values(silent))
    assert silent[-1].data == DONE


def test_keep_alives_are_noise() -> None:
    assert FAMILY.noise(Event(b'{"type":"ping"}', "ping"))
    assert FAMILY.visible([Event(b"{}", "ping")], True) == []
    assert not FAMILY.noise(Event(json.dumps(chunk()).encode()))


def test_stream_options_are_kept_and_usage_is_asked_for() -> None:
    asked = FAMILY.upstream_stream(
        {"model": "m", "stream_options": {"include_obfuscation": False, "include_usage": False}}
    )
    assert asked == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
    }
    assert FAMILY.upstream_stream({"stream_options": None})["stream_options"] == {"include_usage": True}


def test_usage_is_read_from_both_forms() -> None:
    assert FAMILY.usage(body(COMPLETE)) == Usage(3, 4, 2)
    assert FAMILY.usage(stream(chunk(), usage_chunk())) == Usage(3, 4, 0)
    assert FAMILY.usage(stream(chunk())) == Usage()


def test_outputs_tell_text_tokens_calls_and_ends() -> None:
    first = FAMILY.outputs(body(COMPLETE))[0]
    assert (first.text, first.token_ids, first.finish_reason) == ("Grüße an alle in der Runde", (1, 2, 3), "stop")
    called = FAMILY.outputs(TOOL_STREAM)[0]
    assert called.tool_calls == (
        {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"type": "function", "function": {"name": "g", "arguments": '{"y": 2}'}},
    )


def test_outputs_tell_log_probabilities() -> None:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]
    logprobs = {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": top}]}
    output = FAMILY.outputs(stream(chunk({"content": "a"}, logprobs=logprobs, finish_reason="stop")))[0]
    assert output.tokens == ("a",)
    assert output.logprobs == (-0.1,)
    assert output.candidates == ({"a": -0.1, "b": -0.2},)


def test_tools_that_the_server_runs_and_state_that_it_keeps_are_stateful() -> None:
    stateful: list[dict[str, Any]] = [
        {"web_search_options": {}},
        {"tools": [{"type": "web_search"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
    ]
    for more in stateful:
        assert FAMILY.refusal(more) == Reason.STATEFUL
    assert FAMILY.refusal({"tools": [{"type": "function", "function": {}}], "web_search_options": None}) is None


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(["error", "stop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
CHOICES = st.lists(
    ODD | st.fixed_dictionaries({}, optional={"index": ODD | st.integers(0, 1), "finish_reason": ODD, "delta": ODD}),
    max_size=2,
)
CHUNKS = ODD | st.fixed_dictionaries({}, optional={"error": ODD, "object": ODD, "type": ODD, "choices": ODD | CHOICES})


def read_in_full(datas: list[bytes], count: int) -> Reason | None:
    """What the chunks say to somebody who reads every byte of them."""
    finished: dict[Any, Any] = {}
    for data in datas:
        try:
            chunk = json.loads(data.decode())
        except ValueError:
            return Reason.UPSTREAM_ERROR
        if not isinstance(chunk, dict):
            return Reason.UPSTREAM_ERROR
        if chunk.get("error") or "error" in (chunk.get("object"), chunk.get("type")):
            return Reason.UPSTREAM_ERROR
        found = chunk.get("choices")
        for choice in found if isinstance(found, list) else []:
            if isinstance(choice, dict):
                index = choice["index"] if isinstance(choice.get("index"), int) else 0
                finished[index] = choice.get("finish_reason") or finished.get(index)
    if "error" in [reason for reason in finished.values() if isinstance(reason, str)]:
        return Reason.UPSTREAM_ERROR
    whole = set(finished) == set(range(count)) and all(finished.values())
    return None if whole else Reason.TRUNCATED


@given(
    chunks=st.lists(st.tuples(CHUNKS, st.booleans(), st.sampled_from([b"", b"", b"\xff", b"\xc3\xa4"])), max_size=4),
    count=st.integers(1, 2),
)
@example(chunks=[(chunk(finish_reason="stop"), True, b"\xff")], count=1)
@example(chunks=[(chunk(finish_reason="stop"), True, b"\xc3\xa4")], count=1)
def test_whether_a_stream_is_whole_depends_on_every_byte_of_it(chunks: list[Any], count: int) -> None:
    datas = [
        json.dumps(value, ensure_ascii=ascii_only)
        .encode("utf-8", "surrogatepass")
        .replace(b'"delta"', b'"' + odd + b'"')
        for value, ascii_only, odd in chunks
    ]
    answer = replay([*(Event(data) for data in datas), Event(DONE)])
    assert FAMILY.failure(answer, {"n": count}) is read_in_full(datas, count)
