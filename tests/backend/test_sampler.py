import dataclasses
from collections import Counter

import pytest
import torch

from samewise_backend.sampler import RequestSampler, Sampling

LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -2.0]


def _draw(values: Sampling, times: int = 1, output: tuple[int, ...] = (), prompt: tuple[int, ...] = ()) -> list[int]:
    sampler = RequestSampler(values)
    return [sampler.choose(torch.tensor(LOGITS), prompt, output) for _ in range(times)]


def test_temperature_zero_takes_the_likeliest_whatever_the_seed_and_filters_say() -> None:
    for seed in range(5):
        assert _draw(Sampling(seed=seed, temperature=0.0, top_p=0.1, top_k=2, min_p=0.9), 3) == [0, 0, 0]


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    assert _draw(Sampling(seed=5), 50) == _draw(Sampling(seed=5), 50)
    assert _draw(Sampling(seed=5), 50) != _draw(Sampling(seed=6), 50)


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
def test_every_seed_of_64_bits_works(seed: int) -> None:
    assert _draw(Sampling(seed=seed), 3) == _draw(Sampling(seed=seed), 3)


def test_draws_follow_the_distribution() -> None:
    drawn = Counter(_draw(Sampling(seed=1), 20_000))
    expected = torch.tensor(LOGITS).softmax(-1)
    for token, share in enumerate(expected.tolist()):
        assert abs(drawn[token] / 20_000 - share) < 0.015


def test_a_draw_uses_no_generator_of_the_process() -> None:
    sampler = RequestSampler(Sampling(seed=3))
    before = torch.random.get_rng_state()
    drawn = []
    for step in range(20):
        torch.manual_seed(step)
        torch.rand(step + 1)
        drawn.append(sampler.choose(torch.tensor(LOGITS), (), ()))
    assert drawn == _draw(Sampling(seed=3), 20)
    torch.random.set_rng_state(before)


def test_values_cannot_be_changed_under_a_sampler() -> None:
    values = Sampling(seed=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        values.temperature = 1.2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "possible"),
    [
        (Sampling(seed=0, top_k=2), {0, 1}),
        (Sampling(seed=0, top_k=1), {0}),
        (Sampling(seed=0, top_p=0.5), {0}),
        (Sampling(seed=0, top_p=0.7), {0, 1}),
        (Sampling(seed=0, min_p=0.3), {0, 1}),
        (Sampling(seed=0, allowed=(3, 5)), {3, 5}),
        (Sampling(seed=0, logit_bias=((4, 100.0),)), {4}),
        (Sampling(seed=0, min_tokens=1, hold_back=(0, 1, 2)), {3, 4, 5}),
    ],
)
def test_filters_leave_only_what_they_allow(values: Sampling, possible: set[int]) -> None:
    assert set(_draw(values, 400)) == possible


def test_tokens_that_end_an_answer_are_held_back_only_until_the_minimum() -> None:
    values = Sampling(seed=0, temperature=0.0, min_tokens=2, hold_back=(0,))
    assert _draw(values, output=(3,)) == [1]
    assert _draw(values, output=(3, 3)) == [0]


def test_presence_counts_once_and_frequency_each_time() -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    presence = dataclasses.replace(greedy, presence_penalty=0.9)
    frequency = dataclasses.replace(greedy, frequency_penalty=0.6)
    assert _draw(presence, output=(0, 0, 0)) == [0]
    assert _draw(frequency, output=(0,)) == [0]
    assert _draw(frequency, output=(0, 0)) == [1]


def test_output_penalties_leave_the_prompt_alone_and_repetition_does_not() -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    assert _draw(dataclasses.replace(greedy, presence_penalty=2.0), prompt=(0,)) == [0]
    assert _draw(dataclasses.replace(greedy, repetition_penalty=2.5), prompt=(0,)) == [1]


def test_repetition_makes_unlikely_tokens_unlikelier_too() -> None:
    values = Sampling(seed=0, temperature=0.0, repetition_penalty=3.0, allowed=(4, 5))
    assert _draw(values, prompt=(4,)) == [5]


def test_a_temperature_near_zero_is_raised_and_never_divides_by_nothing() -> None:
    assert set(_draw(Sampling(seed=0, temperature=1e-9), 20)) == {0}
