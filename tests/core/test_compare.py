"""A recomputation is compared by what a caller would notice, and a coin toss is told from a change."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.compare import Verdict, compare, equal_json, first_difference
from samewise.core.families import chat, completions, embeddings
from samewise.core.families.contract import Output
from tests.core.families.support import body

sequences = st.lists(st.integers(0, 2)) | st.text("ab", max_size=20)
tokens = st.sampled_from(["a", "b", "ab", "c"])


def output(*words: str, logprobs: Sequence[float] = (), tops: Any = None, **more: Any) -> Output:
    """A choice made of these tokens."""
    known = tuple(logprobs) or None
    candidates = tuple(tops) if tops is not None else None
    told: dict[str, Any] = {"tokens": words, "logprobs": known, "candidates": candidates} if known else {}
    return Output(**{"index": 0, "text": "".join(words), "finish_reason": "stop", **told, **more})


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_first_difference_is_the_first(one: list[int], other: list[int]) -> None:
    found = first_difference(one, other)
    assert found == first_difference(other, one) == first_difference(tuple(one), other)
    if found is None:
        assert one == other
    else:
        assert one[:found] == other[:found]
        assert one[found : found + 1] != other[found : found + 1]


@given(sequences)
def test_nothing_differs_from_itself(one: Any) -> None:
    assert first_difference(one, one) is None
    assert first_difference(one, list(one)) is None


@given(st.lists(st.integers(0, 9)), st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 9)))
def test_a_planted_difference_is_found(before: list[int], mine: int, yours: int, after: list[int]) -> None:
    if mine != yours:
        assert first_difference([*before, mine, *after], [*before, yours]) == len(before)


@st.composite
def outputs(draw: st.DrawFn, index: int = 0) -> Output:
    words = draw(st.lists(tokens, max_size=5))
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["token_ids"] = tuple(["a", "b", "ab", "c"].index(word) for word in words)
    if draw(st.booleans()) and words:
        more["logprobs"] = [draw(st.floats(-9, 0)) for _ in words]
        more["tops"] = [draw(st.dictionaries(tokens, st.floats(-9, 0), max_size=3)) for _ in words]
    if draw(st.booleans()):
        more["tool_calls"] = (
            {"function": {"name": "f", "arguments": draw(st.sampled_from(["{}", '{"a":1}', "{ }"]))}},
        )
    finish = draw(st.sampled_from(["stop", "length"]))
    return output(*words, index=index, finish_reason=finish, **more)


@st.composite
def answers(draw: st.DrawFn) -> list[Output]:
    return [draw(outputs(index)) for index in range(draw(st.integers(1, 2)))]


@given(answers())
def test_an_answer_matches_itself(answer: list[Output]) -> None:
    assert compare(answer, answer).verdict == Verdict.MATCH


@given(answers(), answers(), st.floats(0, 2))
def test_the_verdict_and_the_place_do_not_depend_on_the_side(
    one: list[Output], other: list[Output], nats: float
) -> None:
    there, back = compare(one, other, nats), compare(other, one, nats)
    assert (there.verdict, there.part, there.index, there.position, there.unit, there.gap) == (
        back.verdict,
        back.part,
        back.index,
        back.position,
        back.unit,
        back.gap,
    )
    for mine, yours in zip(there.candidates, reversed(back.candidates), strict=True):
        assert (mine.token, mine.recorded_logprob) == (yours.token, yours.recomputed_logprob)


def test_token_ids_decide_where_both_have_them() -> None:
    found = compare([output("a", "b", token_ids=(1, 2))], [output("a", "c", token_ids=(1, 3))])
    assert (found.verdict, found.part, found.position, found.unit) == (Verdict.DIVERGENT, "tokens", 1, "token")
    assert [candidate.token_id for candidate in found.candidates] == [2, 3]
    assert found.gap is None


def test_text_decides_where_one_has_none() -> None:
    found = compare([output("ab", "cd", token_ids=(1, 2))], [output("abxd")])
    assert (found.verdict, found.part, found.position, found.unit) == (Verdict.DIVERGENT, "text", 2, "character")


def close(*, recorded: Any = None, recomputed: Any = None) -> tuple[list[Output], list[Output]]:
    """Two answers that part at their second token, with what each side told of both candidates there."""

    def side(word: str, token_id: int, told: Any) -> list[Output]:
        if told is None:
            return [output("a", word, token_ids=(1, token_id))]
        return [output("a", word, token_ids=(1, token_id), logprobs=(-0.1, told[word]), tops=({"a": -0.1}, told))]

    return side("b", 2, recorded), side("c", 3, recomputed)


def test_a_near_tie_is_told_from_a_change() -> None:
    assert compare(*close(recomputed={"b": -0.70, "c": -0.69}), 0.05).verdict == Verdict.NEAR_TIE
    assert compare(*close(recorded={"b": -0.70, "c": -0.69}), 0.05).verdict == Verdict.NEAR_TIE
    assert compare(*close(recomputed={"b": -5.0, "c": -0.01}), 0.05).verdict == Verdict.DIVERGENT
    assert compare(*close(recomputed={"x": -0.7, "c": -0.69}), 0.05).verdict == Verdict.DIVERGENT
    assert compare(*close(), 0.05).verdict == Verdict.DIVERGENT
    assert compare(*close(recomputed={"b": -0.7, "c": -0.6}), 0.0).verdict == Verdict.DIVERGENT


def test_a_near_tie_must_be_near_on_every_side_that_tells() -> None:
    near, far = {"b": -0.70, "c": -0.69}, {"b": -0.01, "c": -6.0}
    assert compare(*close(recorded=near, recomputed=near), 0.05).verdict == Verdict.NEAR_TIE
    assert compare(*close(recorded=far, recomputed=near), 0.05).verdict == Verdict.DIVERGENT
    assert compare(*close(recorded=near, recomputed=far), 0.05).verdict == Verdict.DIVERGENT


def test_candidates_tell_both_tokens_with_what_is_known() -> None:
    found = compare(*close(recomputed={"b": -0.70, "c": -0.69}), 0.05)
    assert found.gap == pytest.approx(0.01)
    mine, yours = found.candidates
    assert (mine.token, mine.token_id, mine.recorded_logprob, mine.recomputed_logprob) == ("b", 2, None, -0.70)
    assert (yours.token, yours.token_id, yours.recorded_logprob, yours.recomputed_logprob) == ("c", 3, None, -0.69)


def test_a_near_tie_is_found_without_token_ids() -> None:
    tops = ({"The": -0.1}, {" cat": -0.70, " car": -0.69, " c": -4.0})
    recomputed = output("The", " car", logprobs=(-0.1, -0.69), tops=tops)
    found = compare([output("The cat")], [recomputed], 0.05)
    assert (found.verdict, found.position, found.unit) == (Verdict.NEAR_TIE, 6, "character")
    assert [candidate.token for candidate in found.candidates] == [" cat", " car"]


def test_tokens_that_look_alike_are_no_tie() -> None:
    told: dict[str, Any] = {"logprobs": (-0.5,), "tops": ({"\ufffd": -0.5},)}
    found = compare([output("\ufffd", token_ids=(1,), **told)], [output("\ufffd", token_ids=(2,), **told)], 1.0)
    assert (found.verdict, found.gap) == (Verdict.DIVERGENT, None)


def test_the_worst_choice_decides() -> None:
    near = close(recomputed={"b": -0.70, "c": -0.69})
    far = [output("x", index=1)], [output("y", index=1)]
    found = compare([*near[0], *far[0]], [*far[1], *near[1]], 0.05)
    assert (found.verdict, found.index) == (Verdict.DIVERGENT, 1)


def test_another_number_of_choices_is_inconclusive() -> None:
    assert compare([output("a")], []).verdict == Verdict.INCONCLUSIVE
    assert compare([output("a")], [output("a"), output("b", index=1)]).verdict == Verdict.INCONCLUSIVE


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans()))
def test_json_is_equal_by_value(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert equal_json(json.dumps(value), json.dumps(turned, indent=3, ensure_ascii=False))
    assert not equal_json(json.dumps(value), json.dumps({**value, "more": 1, "most": 2}))


def test_json_that_is_none_is_equal_by_letters() -> None:
    assert equal_json("{oops", "{oops")
    assert not equal_json("{oops", "{oops ")
    assert not equal_json("1", "true")
    assert equal_json("1.0", "1")


def complete(content: str | None = "abc", **more: Any) -> dict[str, Any]:
    top = [{"token": "b", "logprob": -0.70}, {"token": "c", "logprob": -0.71}]
    logprobs = {"content": [{"token": content or "", "logprob": -0.70, "top_logprobs": top}]}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "logprobs": logprobs,
        "finish_reason": "stop",
    }
    answer = {"id": "a", "created": 1, "model": "m", "system_fingerprint": "f", "choices": [choice]}
    return {**answer, "usage": {"prompt_tokens": 9, "completion_tokens": 3}, **more}


def calls(arguments: str, identity: str = "call_1", name: str = "f") -> dict[str, Any]:
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return complete(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])


def verdict(one: Any, other: Any) -> Verdict:
    return compare(chat.FAMILY.outputs(body(one)), chat.FAMILY.outputs(body(other))).verdict


def test_noise_in_log_probabilities_and_usage_is_no_difference() -> None:
    noisy = complete()
    noisy["choices"][0]["logprobs"]["content"][0]["logprob"] += 1e-4
    noisy["choices"][0]["logprobs"]["content"][0]["top_logprobs"].reverse()
    noisy["usage"]["prompt_tokens_details"] = {"cached_tokens": 8}
    assert verdict(complete(), noisy) == Verdict.MATCH


def test_another_token_and_another_end_are_differences() -> None:
    assert verdict(complete("abc"), complete("abd")) == Verdict.DIVERGENT
    other = complete()
    other["choices"][0]["finish_reason"] = "length"
    assert verdict(complete(), other) == Verdict.DIVERGENT


def test_tool_arguments_are_compared_by_value() -> None:
    assert verdict(calls('{"a":1,"b":[1, 2]}'), calls('{ "b": [1,2.0], "a": 1 }')) == Verdict.MATCH
    assert verdict(calls('{"a":1}'), calls('{"a":2}')) == Verdict.DIVERGENT
    assert verdict(calls('{"b":[1,2]}'), calls('{"b":[2,1]}')) == Verdict.DIVERGENT
    assert verdict(calls("{}"), calls("{}", name="g")) == Verdict.DIVERGENT
    assert verdict(calls("{}"), complete(None)) == Verdict.DIVERGENT


def test_what_is_new_in_every_answer_is_no_difference() -> None:
    for number in range(200):
        other = complete(
            id=f"chatcmpl-{number}",
            created=number,
            system_fingerprint=f"fp_{number}",
            service_tier=("default", "flex")[number % 2],
            metrics={"time_to_first_token_ms": number},
        )
        assert verdict(complete(), dict(reversed(other.items()))) == Verdict.MATCH
        assert verdict(calls("{}"), calls("{}", identity=f"call_{number}")) == Verdict.MATCH


def test_a_stream_and_a_body_of_the_same_answer_match() -> None:
    answer = body(calls('{"a":1}'))
    streamed = answer.__class__(form="sse", events=chat.FAMILY.to_events(answer))
    assert compare(chat.FAMILY.outputs(answer), chat.FAMILY.outputs(streamed)).verdict == Verdict.MATCH


def test_prompts_of_text_completions_are_compared_too() -> None:
    one, other = (body({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}) for text in ("ab", "ac"))
    assert compare(completions.FAMILY.outputs(one), completions.FAMILY.outputs(other)).position == 1


def vector(*numbers: float) -> list[Output]:
    return [Output(index=0, text="", vector=numbers)]


def test_vectors_are_compared_within_a_tolerance() -> None:
    close_by = compare(vector(0.5, -0.25), vector(0.50001, -0.25))
    assert close_by.verdict == Verdict.MATCH
    assert close_by.largest_difference == pytest.approx(1e-5)
    assert close_by.cosine == pytest.approx(1.0)
    apart = compare(vector(0.5, -0.25), vector(0.5, -0.26))
    assert (apart.verdict, apart.position, apart.unit) == (Verdict.DIVERGENT, 1, "component")
    loose = compare(vector(0.5, -0.25), vector(0.5, -0.26), vector_tolerance=0.1, min_cosine=0.999)
    assert loose.verdict == Verdict.MATCH
    assert compare(vector(1e-6, 0), vector(0, 1e-6), vector_tolerance=0.1).verdict == Verdict.DIVERGENT
    assert compare(vector(1, 2), vector(1)).verdict == Verdict.DIVERGENT
    assert compare(vector(1000.0, 1.0), vector(1000.01, 1.0)).verdict == Verdict.MATCH


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_odd_numbers_match_only_themselves(odd: float) -> None:
    assert compare(vector(odd, 1.0), vector(odd, 1.0)).verdict == Verdict.MATCH
    assert compare(vector(odd), vector(1.0)).verdict == Verdict.DIVERGENT
    assert compare(vector(1.0, 1.0), vector(odd, 1.0)).verdict == Verdict.DIVERGENT


def test_a_score_is_compared_by_its_size() -> None:
    assert compare(vector(0.9), vector(0.1)).verdict == Verdict.DIVERGENT
    assert compare(vector(0.9), vector(0.90001)).verdict == Verdict.MATCH
    floats, text = ([{"index": 0, "embedding": each}] for each in ([1.0, 2.0], "AACAPwAAAEA="))
    one, other = (embeddings.FAMILY.outputs(body({"data": data})) for data in (floats, text))
    assert compare(one, other).verdict == Verdict.MATCH


def test_a_candidate_is_known_by_its_id_where_tokens_are_named_by_ids() -> None:
    """The record has ids alone; the recomputation names every token by its id."""
    recorded = Output(index=0, text="ab", token_ids=(5, 7))
    recomputed = Output(
        index=0,
        text="ac",
        token_ids=(5, 9),
        tokens=("token_id:5", "token_id:9"),
        logprobs=(-0.1, -0.70),
        candidates=({"token_id:5": -0.1}, {"token_id:9": -0.70, "token_id:7": -0.72}),
    )
    for one, other in ((recorded, recomputed), (recomputed, recorded)):
        found = compare([one], [other], 0.05)
        assert found.verdict is Verdict.NEAR_TIE
        assert found.gap == pytest.approx(0.02)
        assert {each.token_id for each in found.candidates} == {7, 9}
        assert {each.token for each in found.candidates} == {""}
