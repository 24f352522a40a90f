"""The simulation in small: the product's strategies drive it, and the same seed gives the same figures."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.page import renewed
from loadtest.simulate import epochs, main, told
from loadtest.simulate.cluster import STRATEGIES, Backend, Fleet
from loadtest.simulate.report import plot
from loadtest.simulate.trace import Shape, conversations
from samewise.ports import Call
from samewise.store.wake import POLL, TOLD
from samewise.upstream import affinity
from samewise.upstream.strategy import C

SMALL, FEW = Shape(requests=600, rate=16.0, systems=20), Fleet(backends=20, proxies=5)


def test_prefix_reuses_more_than_what_knows_nothing_and_no_more_than_the_oracle() -> None:
    figures = told(SMALL, FEW, seed=1, changes=3)
    reused = {each["strategy"]: each["reused"] for each in figures["strategies"]}
    assert list(reused) == list(STRATEGIES)
    assert max(reused["round-robin"], reused["least-loaded"]) < reused["prefix"] <= reused["oracle"]
    assert all(each["imbalance"] >= 1 for each in figures["strategies"])
    assert figures == told(SMALL, FEW, seed=1, changes=3)
    assert figures != told(SMALL, FEW, seed=2, changes=3)


def test_what_chooses_is_the_product_s_own_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    class Watched(affinity.Prefix):
        def choose(self, candidates: Sequence[C], call: Call) -> C:
            chosen.append(call)
            return super().choose(candidates, call)

    monkeypatch.setattr(affinity, "Prefix", Watched)
    told(Shape(requests=50, rate=16.0), FEW, seed=1, changes=1)
    assert len(chosen) == 50


def test_the_trace_has_the_means_that_its_shape_names() -> None:
    asked = list(conversations(Shape(requests=4_000), seed=3))
    turns = [turn for each in asked for turn in each.turns]
    assert len(turns) == 4_000
    assert 1.8 < len(turns) / len(asked) < 2.2
    assert 150 < len(turns) / asked[-1].at < 170
    assert 195 < sum(turn.answer for turn in turns) / len(turns) < 235
    often = sorted((sum(each.system == one for each in asked) for one in {each.system for each in asked}), reverse=True)
    assert often[0] > 4 * often[10]


def test_a_longer_request_of_a_conversation_begins_with_the_shorter_one() -> None:
    talk = next(each for each in conversations(SMALL, seed=0) if len(each.turns) > 2)
    short, long = (talk.request(turn)["messages"] for turn in (0, 2))
    assert long[: len(short)] == short
    assert [each["role"] for each in long] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_a_backend_keeps_the_blocks_that_it_has_room_for_and_computes_one_prompt_after_the_other() -> None:
    backend = Backend(room=3)
    assert backend.take(0.0, (1, 2), cold=3_000) == 1.0
    assert backend.take(0.5, (1, 3), cold=3_000) == 1.5
    assert (backend.warm((1, 2)), backend.warm((1, 3)), backend.warm((4, 1))) == (128, 128, 0)
    backend.take(9.0, (5,), cold=0)
    assert (backend.warm((1, 2)), backend.warm((1, 3))) == (64, 128)


def test_an_invalidation_is_everywhere_within_one_look() -> None:
    alone, by_word = epochs.figures(proxies=20, changes=10, seed=0, rate=10.0)
    assert POLL / 4 < alone["median"] < alone["last"] < POLL + 0.01
    assert by_word["median"] < 0.01 < by_word["last"] < TOLD + 0.01


def test_the_command_writes_page_plot_and_figures(tmp_path: Path) -> None:
    page, svg, figures = tmp_path / "page.md", tmp_path / "plot.svg", tmp_path / "figures.json"
    page.write_text("before\n<!-- python -m loadtest simulate -->\nstale figures\n<!-- end -->\nafter\n")
    small = ["--requests", "200", "--backends", "20", "--proxies", "5"]
    assert main([*small, "--page", str(page), "--plot", str(svg), "--json", str(figures)]) == 0
    assert page.read_text().startswith("before\n<!-- python -m loadtest simulate -->\n\n| strategy |")
    assert "stale figures" not in page.read_text() and page.read_text().endswith("<!-- end -->\nafter\n")
    assert svg.read_text().count("<rect") == 3 * len(STRATEGIES)
    assert '"seed": 0' in figures.read_text()


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- a command -->"):
        renewed("page", "a command", "told")


def test_the_plot_shows_the_largest_bar_in_full() -> None:
    row = {"strategy": "prefix", "reused": 0.5, "imbalance": 2.0, "p99": 0.1}
    assert plot({"strategies": [row]}, "title").count('width="190"') == 3
