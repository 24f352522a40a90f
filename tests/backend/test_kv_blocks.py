"""Prompts in blocks: found again to the bit, never by the wrong one, and never more bytes than allowed."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from samewise_backend.engine import Engine, Scored, Step
from samewise_backend.kv_blocks import KvBlocks
from samewise_backend.language_model import Context, LanguageModel
from samewise_backend.sampler import RequestSampler
from tests.backend.collected import Collected
from tests.support.vllm import BackendServer

SIZE = 16
TALK = tuple(random.Random(5).choices(range(6, 1024), k=20 * SIZE))
LENGTHS = (1, SIZE, SIZE + 1, 3 * SIZE + 5, 7 * SIZE, 7 * SIZE + 1)


@contextmanager
def running(model: LanguageModel, **options: Any) -> Iterator[Callable[..., tuple[list[torch.Tensor], Collected]]]:
    """Asks an engine, one after the other; the logits of each step, and what was delivered."""

    seen: list[torch.Tensor] = []

    class Sampler(RequestSampler):
        def choose(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> int:
            seen.append(logits.clone())
            return super().choose(logits, prompt, output)

    engine = Engine(model, sampler=Sampler, block=SIZE, **options)
    engine.start()

    def ask(prompt: tuple[int, ...], **values: Any) -> tuple[list[torch.Tensor], Collected]:
        seen.clear()
        asked = Collected(engine, prompt, count=4, **values)
        asked.tokens()
        return list(seen), asked

    try:
        yield ask
    finally:
        engine.close()


def kept(**options: Any) -> KvBlocks:
    return KvBlocks(lambda: "environment", size=SIZE, **options)


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """To the bit."""
    return all(torch.equal(mine, its) for mine, its in zip(one, other, strict=True))


def cached(asked: Collected) -> int:
    return next(event.cached for event in asked.events if isinstance(event, Step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_same_bits_whether_or_not_a_prefix_was_found(tiny_model: Path, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    model = LanguageModel(tiny_model, dtype=dtype, device="cpu")
    with running(model) as without, running(model, reuse=kept()) as reusing:
        expected = {length: without(TALK[:length])[0] for length in LENGTHS}
        found = {}
        for turn in range(2):
            for length in random.Random(turn).sample(LENGTHS, len(LENGTHS)):
                logits, asked = reusing(TALK[:length])
                assert same(logits, expected[length]), (turn, length)
                found[length] = cached(asked)
    assert found == {length: (length - 1) // SIZE * SIZE for length in LENGTHS}


def test_blocks_that_were_found_lead_to_blocks_that_are_found_and_to_the_same_bits(
    language_model: LanguageModel,
) -> None:
    with running(language_model) as without, running(language_model, reuse=kept()) as reusing:
        for turns in range(1, 9):
            prompt = TALK[: turns * SIZE + 3]
            logits, asked = reusing(prompt)
            assert cached(asked) == (turns - 1) * SIZE
            assert same(logits, without(prompt)[0])


def test_what_an_answer_added_is_computed_anew_as_part_of_a_prompt(language_model: LanguageModel) -> None:
    with running(language_model) as without, running(language_model, reuse=kept()) as reusing:
        _, first = reusing(TALK[: SIZE - 2])
        conversation = (*TALK[: SIZE - 2], *first.tokens(), *TALK[:3])
        logits, second = reusing(conversation)
        assert cached(second) == 0
        assert same(logits, without(conversation)[0])


def test_requests_of_other_salts_find_nothing(language_model: LanguageModel) -> None:
    with running(language_model, reuse=kept()) as reusing:
        reusing(TALK[:100], salt="a")
        assert [cached(reusing(TALK[:100], salt=salt)[1]) for salt in ("a", "b", None, "")] == [96, 0, 0, 0]


def test_another_environment_finds_nothing_and_the_old_one_finds_its_own(language_model: LanguageModel) -> None:
    now = ["one"]
    with running(language_model, reuse=KvBlocks(lambda: now[0], size=SIZE)) as reusing:
        reusing(TALK[:100])
        now[0] = "other"
        assert cached(reusing(TALK[:100])[1]) == 0
        now[0] = "one"
        assert cached(reusing(TALK[:100])[1]) == 96


def test_a_prompt_that_is_scored_is_computed_whole(language_model: LanguageModel) -> None:
    def scores(asked: Collected) -> list[float]:
        first = asked.events[0]
        assert isinstance(first, Scored)
        return [one.logprob for one in first.prompt if one is not None]

    with running(language_model, reuse=kept()) as reusing:
        before = scores(reusing(TALK[:100], score_prompt=True, logprobs=0)[1])
        again = reusing(TALK[:100], score_prompt=True, logprobs=0)[1]
        assert (scores(again), len(before), cached(again)) == (before, 99, 0)


def test_a_long_prompt_is_computed_in_pieces_between_which_others_take_their_turns(
    language_model: LanguageModel,
) -> None:
    engine = Engine(language_model, block=SIZE)
    long, short = Collected(engine, TALK, count=1), Collected(engine, TALK[:3], count=8)
    engine.start()
    short.tokens()
    assert not long.done.is_set()
    long.tokens()
    engine.close()


class Spoken(RuleBasedStateMachine):
    """Blocks whose numbers say who put them there: what is found is the finder's own, and bytes are bounded."""

    BLOCK, MOST = 2, 12 * 4 * 2

    def __init__(self) -> None:
        super().__init__()
        self.environment = "0"
        self.blocks = KvBlocks(lambda: self.environment, size=self.BLOCK, most=self.MOST)

    def context(self, tokens: list[int], salt: str | None) -> Context:
        """One layer; its keys are the tokens, its values the environment and the salt. Four bytes for each number."""
        keys = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1)
        values = torch.full_like(keys, int(self.environment) + 10 * len(salt or "xxx"))
        return Context.of([((keys, values),)], tokens)

    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)
    salts = st.sampled_from([None, "a", "aa"])

    @rule(tokens=prompts, salt=salts)
    def asked(self, tokens: list[int], salt: str | None) -> None:
        found = self.blocks.find(tokens, salt)
        whole = self.context(tokens, salt)
        if found is not None:
            assert 0 < found.length < len(tokens)
            assert found.tokens == tokens[: found.length]
            for mine, own in zip(found.cut(0, found.length), whole.cut(0, found.length), strict=True):
                assert torch.equal(mine[0], own[0]) and torch.equal(mine[1], own[1])
            found.cache.layers[0].keys.zero_()
        self.blocks.keep(whole, salt)
        whole.cache.layers[0].keys.zero_()
        again = self.blocks.find(tokens, salt)
        fits = self.MOST // (self.BLOCK * 8)
        assert (again.length if again else 0) == min((len(tokens) - 1) // self.BLOCK, fits) * self.BLOCK

    @rule(environment=st.sampled_from("01"))
    def changed(self, environment: str) -> None:
        self.environment = environment

    @invariant()
    def bounded(self) -> None:
        assert self.blocks.bytes == len(self.blocks) * self.BLOCK * 8 <= self.MOST


TestSpoken = Spoken.TestCase
TestSpoken.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@given(most=st.integers(0, 15))
def test_what_is_larger_than_all_room_is_not_kept(most: int) -> None:
    blocks = KvBlocks(lambda: "", size=2, most=most)
    keys = torch.zeros(1, 1, 9, 1)
    blocks.keep(Context.of([((keys, keys),)], list(range(9))), None)
    assert (len(blocks), blocks.bytes) == (0, 0)


def prompt_of(server: BackendServer, prompt: Any, **values: Any) -> int:
    details = server.complete(prompt, max_tokens=1, **values)["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])


def test_a_server_tells_of_cached_tokens_and_holds_to_the_salt(reference_server: BackendServer) -> None:
    first, second = list(TALK[:200]), list(TALK[200:])
    assert [prompt_of(reference_server, first, cache_salt="one") for _ in range(2)] == [0, 192]
    assert prompt_of(reference_server, first, cache_salt="other") == 0
    assert prompt_of(reference_server, [first, second], cache_salt="one") == 192
    again = prompt_of(reference_server, [first, second], cache_salt="one", n=2, temperature=1, seed=3)
    assert again == 192 + 64
    manifest = reference_server.manifest()
    names = ("block_size", "enable_prefix_caching", "enable_chunked_prefill", "max_num_batched_tokens")
    assert [manifest[name] for name in names] == [64, True, True, 64]
    assert manifest["info"]["kv_cache_memory_bytes"] == 256 << 20
    metrics = reference_server.call("GET", "/metrics").body.decode()
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"}' in metrics


def test_reuse_can_be_turned_off_and_is_another_environment(tiny_model: Path) -> None:
    from samewise_backend import model_files, reference

    def identity(*args: str) -> str:
        place = reference.Place("m")
        options = reference.parse(model_files.resolve(str(tiny_model)), place, None, "cpu", args)
        return reference.describe(options).id

    plain = identity()
    assert identity("--no-enable-prefix-caching") != plain
    assert identity("--block-size", "32") != plain
    assert identity("--kv-cache-memory-bytes", "1000") == plain
    with pytest.raises(ValueError, match="--block-size must be at least 1"):
        identity("--block-size", "0")
    with pytest.raises(ValueError, match="--kv-cache-memory-bytes must not be negative"):
        identity("--kv-cache-memory-bytes", "-1")
