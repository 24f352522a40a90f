"""Divergences and receipts, as people read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from samewise.cli.divergences import pieces
from samewise.core.compare import first_difference

Run = Callable[..., Result]
words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=60)


def told(**members: Any) -> dict[str, Any]:
    side = {"text": "the cat sat", "tokens": ["the", " cat", " sat"], "token_ids": [1, 2, 3], "finish_reason": "stop"}
    other = {**side, "text": "the dog sat", "tokens": ["the", " dog", " sat"], "token_ids": [1, 9, 3]}
    candidate = {"token": " cat", "token_id": 2, "recorded_logprob": None, "recomputed_logprob": -0.7}
    return {
        "id": "d1",
        "verdict": "near_tie",
        "position": 1,
        "unit": "token",
        "cached": side,
        "recomputed": other,
        "candidates": [candidate, {**candidate, "token": " dog", "token_id": 9, "recomputed_logprob": -0.69}],
        "odd": ["http://three/v1"],
        **members,
    }


def test_both_outputs_are_shown_from_the_first_different_token_on(run: Run, scripted: Any) -> None:
    scripted.answer("GET", "divergences/d1", told())
    output = run("divergences", "show", "d1").output
    row = next(line for line in output.splitlines() if "' cat'" in line and "' dog'" in line)
    assert row.strip().startswith("!")
    assert "-0.69" in output
    assert "http://three/v1" in output


def test_outputs_kept_as_digests_are_told_as_such(run: Run, scripted: Any) -> None:
    digests = {"cached": {"digest": "aa"}, "recomputed": {"digest": "bb"}, "candidates": []}
    scripted.answer("GET", "divergences/d1", told(**digests))
    output = run("divergences", "show", "d1").output
    assert "kept as digests" in output
    assert "aa" in output


def test_outputs_can_not_drive_the_terminal(run: Run, scripted: Any) -> None:
    evil = {"text": "\x1b]0;owned\x07", "finish_reason": "stop"}
    scripted.answer("GET", "divergences/d1", told(cached=evil, recomputed={"text": "x"}, unit="character", position=0))
    assert "\x1b" not in run("divergences", "show", "d1").output


@given(words, words)
def test_a_diff_is_all_of_both_from_shortly_before_the_difference(one: list[str], other: list[str]) -> None:
    position = first_difference(one, other)
    if position is None:
        return
    rows = pieces(one, other, position)
    start = max(0, position - 6)
    assert "".join(row[1] for row in rows) == "".join(one[start : position + 40])
    assert "".join(row[2] for row in rows) == "".join(other[start : position + 40])
    assert all((row[0] == " ") == (row[1] == row[2]) for row in rows)


@pytest.mark.parametrize(("verdict", "code"), [("match", 0), ("divergent", 1), ("inconclusive", 1)])
def test_recomputing_now_ends_with_the_answer(run: Run, scripted: Any, verdict: str, code: int) -> None:
    scripted.answer("POST", "verify", {"items": [{"key": "k1", "verdict": verdict}]})
    done = run("divergences", "verify", "k1")
    assert done.exit_code == code
    assert verdict in done.output
    assert scripted.asked[-1][2] == {"keys": ["k1"]}


@pytest.mark.parametrize(("whole", "code"), [(True, 0), (False, 1)])
def test_a_log_that_is_not_whole_is_the_answer_no(run: Run, scripted: Any, whole: bool, code: int) -> None:
    broken = None if whole else {"place": 7, "why": "it was changed"}
    scripted.answer("GET", "receipts/check", {"whole": whole, "lines": 6, "head": "h", "broken": broken})
    done = run("receipts", "check")
    assert done.exit_code == code
    assert ("line 7: it was changed" in done.output) is not whole


def test_a_receipt_is_shown_and_replayed(run: Run, scripted: Any, tmp_path: Path) -> None:
    scripted.answer("GET", "receipts/r1", {"id": "r1", "at": 1.0, "output": "oo"})
    assert "oo" in run("receipts", "show", "r1").output
    scripted.answer("POST", "receipts/r1/replay", {"id": "r1", "verdict": "divergent"})
    asked = tmp_path / "asked.json"
    asked.write_text('{"model": "m"}')
    done = run("receipts", "replay", "r1", "--request", str(asked))
    assert done.exit_code == 1
    assert scripted.asked[-1][2] == {"request": {"model": "m"}}
    assert run("receipts", "replay", "r1", "--request", str(tmp_path / "none")).exit_code == 2
