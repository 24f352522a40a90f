"""Text completions: a list of prompts is as many questions, answered in order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samewise.core.answer import DONE, Event
from samewise.core.families.completions import FAMILY
from samewise.core.reason import Reason
from tests.core.families.support import body, replay, stream, values


def answer(*texts: str, number: int = 1, **more: Any) -> dict[str, Any]:
    choices = [{"index": at, "text": text, "logprobs": None, "finish_reason": "stop"} for at, text in enumerate(texts)]
    counts = {"prompt_tokens": number, "completion_tokens": 2 * number, "total_tokens": 3 * number}
    head = {"id": f"cmpl-{number}", "object": "text_completion", "created": number, "model": "m"}
    return {**head, "choices": choices, "usage": counts, **more}


@pytest.mark.parametrize(
    ("prompt", "units"),
    [
        ("hi", ["hi"]),
        (["hi"], [["hi"]]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[[1, 2]]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1, 2], "b"], ["a", [1, 2], "b"]),
        ([1, "a"], [[1, "a"]]),
        ([], [[]]),
        (None, [None]),
    ],
)
def test_a_list_of_prompts_is_one_unit_a_prompt(prompt: Any, units: list[Any]) -> None:
    whole = {"model": "m", "prompt": prompt, "echo": True, "n": 2}
    assert FAMILY.split(whole) == [{**whole, "prompt": unit} for unit in units]


def test_answers_to_a_list_are_joined_in_order_and_numbered() -> None:
    requests = [{"prompt": "a", "n": 2}, {"prompt": "b", "n": 2}]
    second = replay(FAMILY.to_events(body(answer("c", "d", number=2))))
    joined = json.loads(FAMILY.join([body(answer("a", "b")), second], requests).body)
    assert [(choice["index"], choice["text"]) for choice in joined["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "d"),
    ]
    assert joined["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert joined["id"] == "cmpl-1"
    from openai.types import Completion

    Completion.model_validate(joined)


def test_streams_of_a_list_share_one_id_and_one_usage_and_one_end() -> None:
    requests = [{"prompt": "a", "n": 2}, {"prompt": "b", "n": 2}]
    answers = [
        replay(FAMILY.to_events(body(answer("a", "b")))),
        replay(FAMILY.to_events(body(answer("c", "d", number=2)))),
    ]
    for include_usage in (True, False):
        seen: list[Event] = []
        for unit, one in enumerate(answers):
            for shown in FAMILY.visible(one.events, False):
                if not FAMILY.ends(shown):
                    seen.append(FAMILY.shift(shown, unit, requests[unit], seen[0] if seen else None))
        seen += FAMILY.closing(answers, requests, include_usage)
        told = json.loads(FAMILY.to_body(replay(seen)))
        assert [(choice["index"], choice["text"]) for choice in told["choices"]] == list(enumerate("abcd"))
        assert {value["id"] for value in values(seen)} == {"cmpl-1"}
        assert told.get("usage") == (
            {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9} if include_usage else None
        )
        assert [event.data for event in seen].count(DONE) == 1
        assert seen[-1].data == DONE


def test_nothing_is_invented_where_no_usage_was_told() -> None:
    silent = stream({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})
    assert [event.data for event in FAMILY.closing([silent, silent], [{}, {}], True)] == [DONE]


def test_a_stream_alone_keeps_its_bytes() -> None:
    event = Event(b'{"choices": [ {"index":0,"text":"a"} ]}')
    assert FAMILY.shift(event, 0, {}) is event


def test_a_cut_stream_and_a_missing_choice_are_truncated() -> None:
    unfinished = stream({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    assert FAMILY.failure(unfinished, {}) == Reason.TRUNCATED
    assert FAMILY.failure(body(answer("a")), {"n": 2}) == Reason.TRUNCATED
    assert FAMILY.failure(body(answer("a")), {"prompt": ["a", "b"]}) == Reason.TRUNCATED
    assert FAMILY.failure(body(answer("a", "b")), {"n": 2, "best_of": 4}) is None


TOKENS = ["Once", " upon", " a", " time", ",", " there", " was"]
WITH_TOKENS = {
    "index": 0,
    "text": "".join(TOKENS),
    "logprobs": {
        "text_offset": [0, 4, 9, 11, 16, 17, 23],
        "token_logprobs": [None, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6],
        "tokens": TOKENS,
        "top_logprobs": [None, *({token: -0.1, "x": -3.0} for token in TOKENS[1:])],
    },
    "finish_reason": "length",
    "stop_reason": None,
    "token_ids": [1, 2, 3, 4, 5, 6, 7],
    "prompt_token_ids": [8, 9],
    "prompt_logprobs": None,
}


def test_tokens_and_log_probabilities_stay_with_their_text() -> None:
    whole = {**answer(), "choices": [WITH_TOKENS]}
    events = FAMILY.to_events(body(whole))
    assert json.loads(FAMILY.to_body(replay(events))) == whole
    parts = [value["choices"][0] for value in values(events) if value["choices"] and value["choices"][0]["text"]]
    assert len(parts) >= 2
    for part in parts:
        assert "".join(part["logprobs"]["tokens"]) == part["text"]
        assert len(part["token_ids"]) == len(part["logprobs"]["tokens"])


def test_outputs_tell_tokens_and_candidates() -> None:
    output = FAMILY.outputs(body({**answer(), "choices": [WITH_TOKENS]}))[0]
    assert output.token_ids == (1, 2, 3, 4, 5, 6, 7)
    assert output.tokens == tuple(TOKENS)
    assert output.candidates is not None
    assert output.candidates[1] == {" upon": -0.1, "x": -3.0}
    named = {**WITH_TOKENS, "token_ids": None, "logprobs": {"tokens": ["token_id:4"], "token_logprobs": [-1.0]}}
    assert FAMILY.outputs(body({**answer(), "choices": [named]}))[0].token_ids == (4,)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=3))
def test_any_texts_survive_being_told_as_events(texts: list[str]) -> None:
    whole = answer(*texts)
    events = FAMILY.to_events(body(whole))
    assert json.loads(FAMILY.to_body(replay(events))) == whole
    assert FAMILY.failure(replay(events), {"n": len(texts)}) is None
