"""An update of a profile changes nothing that runs; a process-wide object would change all of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.drift import cost, reference, report, vllm
from loadtest.drift.bleu import bleu
from loadtest.drift.client import AT, COLD, WARM
from loadtest.drift.figures import Output, compare, first_difference
from loadtest.drift.shared import ProcessWide
from samewise_backend.language_model import LanguageModel
from samewise_backend.sampler import RequestSampler, Sampling
from tests.support.vllm import require_vllm

DOCS = Path(__file__).parents[2] / "docs"
REQUESTS = 4
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=30)

# --- measures ---------------------------------------------------------------------------------------------


@given(TOKENS)
def test_a_sequence_is_wholly_like_itself(tokens: list[int]) -> None:
    assert bleu(tokens, tokens) == pytest.approx(1.0)


@given(TOKENS, TOKENS)
def test_bleu_is_a_share_and_nothing_in_common_is_nothing(ours: list[int], theirs: list[int]) -> None:
    assert 0.0 <= bleu(ours, theirs) <= 1.0 + 1e-12
    assert bleu(ours, [token + 100 for token in theirs]) == 0.0


def test_bleu_of_a_known_pair() -> None:
    """Clipped precisions 5/6, 3/5, 1/4 and, with no match, 1/2 of a match in 3; equal lengths."""
    ours, theirs = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "is", "on", "the", "mat"]
    assert bleu(ours, theirs) == pytest.approx((5 / 6 * 3 / 5 * 1 / 4 * 0.5 / 3) ** 0.25)
    assert bleu(["the"] * 4, ["the", "cat", "is", "here"], order=1) == pytest.approx(1 / 4)
    assert bleu(list("abcde"), list("abcdefghij")) == pytest.approx(math.exp(1 - 10 / 5))


def test_the_first_difference_is_found_where_one_ends_early_too() -> None:
    long, short = Output((1, 2, 3), (0.0,) * 3), Output((1, 2), (0.0,) * 2)
    other = Output((1, 9, 3), (0.0,) * 3)
    assert [first_difference(one, long) for one in (long, short, other)] == [None, 2, 1]
    assert compare([other, long], [long, long], 1)["changed"] == 1


def test_a_process_wide_sampler_is_an_isolated_one_until_it_is_changed() -> None:
    import torch

    values = Sampling(seed=5, temperature=COLD)
    process = ProcessWide(COLD)
    shared, alone = process.sampler(values), RequestSampler(values)
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(1)) * 4
    same = [(shared.choose(row.clone(), (), ()), alone.choose(row.clone(), (), ())) for row in logits]
    assert all(ours == theirs for ours, theirs in same)
    process.temperature = WARM
    changed = [(shared.choose(row.clone(), (), ()), alone.choose(row.clone(), (), ())) for row in logits]
    assert any(ours != theirs for ours, theirs in changed)


# --- the experiment ---------------------------------------------------------------------------------------


def check(figures: dict[str, Any]) -> None:
    """What holds on every engine."""
    for run in ("undisturbed", "samewise", "after_the_update"):
        assert figures[run]["changed"] == 0, run
        assert figures[run]["self_bleu"] == pytest.approx(1.0)
        assert figures[run]["perplexity_jump"] == pytest.approx(1.0)
    drifted = figures["process_wide"]
    assert drifted["changed"] == drifted["requests"] == REQUESTS
    assert drifted["first_difference"]["least"] >= AT
    assert drifted["self_bleu"] < 0.6
    assert drifted["self_bleu_after"] < drifted["self_bleu"]
    assert drifted["perplexity_jump"] > 1.5


@pytest.mark.slow
async def test_nothing_drifts_through_samewise_on_the_reference_engine() -> None:
    check(await reference.experiment(REQUESTS, pairs=0))


@pytest.mark.slow
@pytest.mark.vllm
async def test_nothing_drifts_through_samewise_on_vllm() -> None:
    require_vllm()
    check(await vllm.experiment(REQUESTS))


@pytest.mark.slow
def test_what_a_sampler_for_each_request_costs_is_told(tiny_model: Path) -> None:
    """How little that is, the recorded figures say."""
    options = reference.options_of(tiny_model)
    model = LanguageModel(options.model.directory, dtype=torch_float32(), device="cpu")
    told = cost.measure(model, pairs=3)
    assert told["pairs"] == 3
    assert min(told["tokens_per_cpu_second"].values()) > 0
    low, high = told["cost_quartiles"]
    assert low <= told["cost"] <= high < 1


def torch_float32() -> Any:
    import torch

    return torch.float32


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_shows_the_recorded_figures() -> None:
    figures = json.loads((DOCS / "drift.json").read_text(encoding="utf-8"))
    page = (DOCS / "drift.md").read_text(encoding="utf-8")
    assert report.renewed(page, figures) == page
    assert [engine["engine"] for engine in figures["engines"]] == ["reference", "vllm"]
    for engine in figures["engines"]:
        assert engine["samewise"]["changed"] == 0
    assert figures["engines"][0]["isolation"]["cost"] < 0.03
