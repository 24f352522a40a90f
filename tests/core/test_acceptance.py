"""What a series of answers comes to: agreement, or where and how closely they part."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core import prompts
from samewise.core.acceptance import Asking, Judge, Sample, closest, digest, schedule
from samewise.core.families.contract import Output
from samewise.core.prompts import Prompt

PROMPT = Prompt(name="p", family="completions", body={"prompt": "x", "temperature": 0})
ASKING = Asking(prompt=PROMPT, concurrency=8, stream=True, warm=False)


def output(*tokens: str, logprobs: tuple[float, ...] | None = None, second: dict[str, float] | None = None) -> Output:
    told = logprobs or tuple(-0.1 for _ in tokens)
    return Output(
        index=0,
        text="".join(tokens),
        tokens=tokens,
        token_ids=tuple(hash(token) % 1000 for token in tokens),
        finish_reason="length",
        logprobs=told,
        candidates=tuple({**(second or {}), token: value} for token, value in zip(tokens, told, strict=True)),
    )


def sample(*outputs: Output, **more: Any) -> Sample:
    return Sample(**{"asking": ASKING, "environment": "e", "member": "one", "outputs": outputs, **more})


def judged(*samples: Sample) -> Any:
    judge = Judge("m")
    for each in samples:
        judge.add(each)
    return judge.report()


def test_equal_answers_agree_whatever_their_log_probabilities() -> None:
    report = judged(sample(output("a", "b")), sample(output("a", "b", logprobs=(-0.2, -0.3))))
    assert report.agreed
    assert report.rows[0].hashes == {digest((output("a", "b"),)): 2}


def test_a_disagreement_tells_where_how_closely_and_under_what_load() -> None:
    first = output("a", "b", second={"c": -0.12})
    other = sample(output("a", "c", second={"b": -0.13}), cached_tokens=128)
    report = judged(sample(first), other)
    assert not report.agreed
    (told,) = report.disagreements
    assert (told.prompt, told.unit, told.position, told.tokens) == ("p", "token", 1, ("b", "c"))
    assert told.gap == pytest.approx(0.03)
    assert (told.concurrency, told.stream, told.warm, told.cached_tokens) == (8, True, False, 128)
    assert report.rows[0].disagreements == 1
    assert len(report.rows[0].hashes) == 2


def test_only_answers_of_one_environment_are_held_against_each_other() -> None:
    apart = (sample(output("a")), sample(output("b"), environment="f"))
    assert judged(*apart).agreed
    same = (sample(output("a")), sample(output("b"), member="two"))
    assert not judged(*same).agreed


def test_no_answer_and_a_failed_one_are_no_agreement() -> None:
    assert not judged().agreed
    report = judged(sample(output("a")), sample(failure="status 500"))
    assert (report.agreed, report.failures, report.errors) == (False, 1, ("status 500",))


def test_another_ending_or_another_call_is_another_answer() -> None:
    one = Output(index=0, text="a", finish_reason="stop")
    for other in (
        Output(index=0, text="a", finish_reason="length"),
        Output(index=0, text="a", finish_reason="stop", tool_calls=({"function": {"name": "f"}},)),
    ):
        assert not judged(sample(one), sample(other)).agreed
        assert digest((one,)) != digest((other,))


def test_the_closest_call_is_the_smallest_distance_of_the_best_two() -> None:
    told = Output(index=0, text="", candidates=({"a": -0.1, "b": -2.0, "c": -3.0}, {"a": -0.5, "b": -0.7}))
    assert closest((told,)) == pytest.approx(0.2)
    assert closest((Output(index=0, text="a"),)) is None


@given(
    repeat=st.integers(2, 12),
    concurrencies=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    count=st.integers(1, 6),
)
def test_each_prompt_is_asked_as_often_at_each_concurrency_the_lowest_first(
    repeat: int, concurrencies: list[int], count: int
) -> None:
    asked = [Prompt(name=str(number), family="chat", body={}) for number in range(count)]
    rounds = list(schedule(asked, repeat, concurrencies))
    levels = [each[0].concurrency for each in rounds]
    assert levels == sorted(set(concurrencies))
    assert all(low < high for low, high in pairwise(levels))
    for askings in rounds:
        assert Counter(asking.prompt.name for asking in askings) == {prompt.name: repeat for prompt in asked}
        assert not any(asking.stream or asking.warm for asking in askings[:count])
    if repeat >= 5:
        ways = {(asking.stream, asking.warm) for asking in rounds[0] if asking.prompt.name == "0"}
        assert len(ways) == 4


def test_the_shipped_prompts_can_be_answered_only_one_way_each() -> None:
    shipped = prompts.shipped()
    assert len({prompt.name for prompt in shipped}) == len(shipped) >= 20
    for prompt in shipped:
        assert prompt.body["temperature"] == 0 or prompt.body["seed"] is not None
    assert any(prompt.body["temperature"] for prompt in shipped)


def test_prompts_of_a_user_are_texts_or_bodies() -> None:
    found = prompts.read(
        ["a", {"name": "n", "messages": [], "model": "ignored"}, {"prompt": "c", "temperature": 1, "seed": 3}]
    )
    assert [(prompt.name, prompt.family) for prompt in found] == [
        ("prompt-1", "completions"),
        ("n", "chat"),
        ("prompt-3", "completions"),
    ]
    assert [prompt.body["temperature"] for prompt in found] == [0, 0, 1]
    assert "model" not in found[1].body


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        "a",
        [1],
        [{}],
        [{"prompt": "a", "messages": []}],
        [{"prompt": "a", "temperature": 1}],
        [{"prompt": ["a", "b"]}],
    ],
)
def test_prompts_that_make_no_sense_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="prompt"):
        prompts.read(value)
