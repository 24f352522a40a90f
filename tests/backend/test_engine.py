import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from samewise_backend import tiny_model as tiny
from samewise_backend.engine import Engine, Failed, Scored, Step
from samewise_backend.language_model import LanguageModel
from samewise_backend.sampler import RequestSampler, Sampling
from tests.backend.collected import Collected

PROMPTS = [tuple(random.Random(number).choices(range(6, 1024), k=3 + 7 * number)) for number in range(6)]


def _logprobs(collected: Collected) -> list[float]:
    return [event.chosen.logprob for event in collected.events if isinstance(event, Step) and event.chosen]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_and_logprobs_do_not_depend_on_what_else_runs(engine: Engine, temperature: float) -> None:
    def ask(number: int) -> Collected:
        return Collected(engine, PROMPTS[number], count=24, seed=number, temperature=temperature, logprobs=0)

    alone = []
    for number in range(len(PROMPTS)):
        one = ask(number)
        alone.append((one.tokens(), _logprobs(one)))
    together = [ask(number) for number in range(len(PROMPTS))]
    noise = [Collected(engine, PROMPTS[number % 6][:5], count=40, seed=99 + number) for number in range(10)]
    for number, one in enumerate(together):
        assert (one.tokens(), _logprobs(one)) == alone[number]
    for one in noise:
        one.tokens()


def test_requests_take_turns_so_that_a_long_one_does_not_delay_a_short_one(engine: Engine) -> None:
    long = Collected(engine, PROMPTS[0], count=400)
    long.after(3)
    short = Collected(engine, PROMPTS[1], count=5)
    short.tokens()
    assert not long.done.is_set()
    assert len(long.events) < 60
    long.ticket.abort()


def test_an_aborted_job_leaves_the_engine(engine: Engine) -> None:
    aborted = Collected(engine, PROMPTS[0], count=2000)
    aborted.after(2)
    aborted.ticket.abort()
    Collected(engine, PROMPTS[1], count=30).tokens()
    seen = len(aborted.events)
    Collected(engine, PROMPTS[1], count=30).tokens()
    engine.close()
    assert len(aborted.events) == seen


def test_no_more_sequences_run_at_once_than_allowed(language_model: LanguageModel) -> None:
    most = []

    class Watching(RequestSampler):
        def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
            most.append(engine.running)
            return super().choose(logits, prompt, output)

    engine = Engine(language_model, max_sequences=2, sampler=Watching)
    jobs = [Collected(engine, PROMPTS[0], count=5, seed=number) for number in range(6)]
    engine.start()
    assert all(len(job.tokens()) == 5 for job in jobs)
    assert max(most) == 2
    engine.close()


def test_a_sequence_that_fails_ends_alone(language_model: LanguageModel) -> None:
    class Failing(RequestSampler):
        def __init__(self, values: Sampling) -> None:
            super().__init__(values)
            self._fails = values.seed == 13

        def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
            if self._fails:
                raise ArithmeticError("no token")
            return super().choose(logits, prompt, output)

    engine = Engine(language_model, sampler=Failing)
    engine.start()
    bad, good = Collected(engine, PROMPTS[0], seed=13), Collected(engine, PROMPTS[0], seed=1)
    assert len(good.tokens()) == 8
    assert bad.done.wait(60)
    assert bad.events == [Failed("ArithmeticError: no token")]
    engine.close()


def test_what_runs_when_the_engine_ends_is_told(language_model: LanguageModel) -> None:
    engine = Engine(language_model)
    engine.start()
    running = Collected(engine, PROMPTS[0], count=2000)
    running.after(2)
    engine.close()
    assert running.done.is_set()
    assert isinstance(running.events[-1], Failed)


def test_a_sequence_is_computed_by_one_model_even_when_another_is_swapped_in(engine: Engine, tmp_path: Path) -> None:
    fresh = LanguageModel(tiny.write(tmp_path / "other", tiny.Shape(seed=1)), dtype=torch.float32, device="cpu")
    undisturbed = Collected(engine, PROMPTS[0], count=40).tokens()
    across = Collected(engine, PROMPTS[0], count=40)
    across.after(5)
    swapped = threading.Event()
    engine.swap(fresh, swapped.set)
    after = Collected(engine, PROMPTS[0], count=40)
    assert across.tokens() == undisturbed
    assert after.tokens() != undisturbed
    assert swapped.is_set()


def test_an_answer_ends_at_a_stop_token_and_names_it(engine: Engine) -> None:
    free = Collected(engine, PROMPTS[2], count=10, temperature=0.0).tokens()
    stopped = Collected(engine, PROMPTS[2], count=10, temperature=0.0, stop_tokens=frozenset({free[3]}))
    assert stopped.tokens() == free[: free.index(free[3]) + 1]
    last = stopped.events[-1]
    assert isinstance(last, Step)
    assert (last.finish, last.stop, last.text) == ("stop", free[3], "")


def test_an_answer_ends_at_the_end_token_without_naming_it(engine: Engine) -> None:
    free = Collected(engine, PROMPTS[2], count=10, temperature=0.0).tokens()
    ended = Collected(engine, PROMPTS[2], count=10, temperature=0.0, eos=frozenset({free[3]}))
    ended.tokens()
    last = ended.events[-1]
    assert isinstance(last, Step)
    assert (last.finish, last.stop) == ("stop", None)


def test_a_prompt_is_scored_before_it_is_continued(engine: Engine) -> None:
    scored = Collected(engine, PROMPTS[1], count=1, score_prompt=True, logprobs=2)
    scored.tokens()
    first = scored.events[0]
    assert isinstance(first, Scored)
    assert first.prompt[0] is None
    assert [one.token for one in first.prompt[1:] if one] == list(PROMPTS[1][1:])
    assert all(len(one.top) == 2 for one in first.prompt[1:] if one)


def test_events_of_a_job_come_in_order_and_end_once(engine: Engine) -> None:
    other = Collected(engine, PROMPTS[0], count=6)
    other.tokens()
    assert [event.finish for event in other.events if isinstance(event, Step)] == [None] * 5 + ["length"]
