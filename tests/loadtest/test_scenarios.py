"""What scenarios compute before and after they measure; the measuring itself takes minutes and is asked for by name."""

from collections import Counter

import pytest

from loadtest import conversations, cost, sessions
from loadtest.__main__ import SCENARIOS, main


def test_every_scenario_is_listed_with_a_line_that_says_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == list(SCENARIOS)
    assert main(["no-such"]) == 2


def test_agents_repeat_four_of_five_of_their_own_steps_and_share_the_others() -> None:
    walks = sessions.sessions(steps=50, seed=0)
    assert [len(walk) for walk in walks] == [50] * sessions.AGENTS
    assert [len(set(walk)) for walk in walks] == [10] * sessions.AGENTS
    shared = Counter(step for walk in walks for step in set(walk))
    assert len(shared) < 10 * sessions.AGENTS / 2
    assert walks == sessions.sessions(steps=50, seed=0) != sessions.sessions(steps=50, seed=1)
    assert sessions.body("m", 3) == sessions.body("m", 3) != sessions.body("m", 4)


def test_what_agents_gained_is_told() -> None:
    times = {"mean": 0.1, "median": 0.2, "p95": 0.4}
    level = {"ratio": 1.0, "low": 0.98, "high": 1.0, "checked": 250}
    figures = {"requests": 300, "hit_rate": 0.9, "consistency": level, "without": times}
    told = sessions.table({**figures, "with": {"mean": 0.01, "median": 0.002, "p95": 0.8}})
    assert "| answered from the cache, of 300 steps | | 90.0% | |" in told
    assert "| a step takes, mean | 100 ms | 10.0 ms | 90% less |" in told
    assert "| 95th percentile | 400 ms | 800.0 ms | 100% more |" in told
    assert "of 250 hits recomputed (95 %) | | 1.000 (0.980 to 1.000) |" in told


def test_what_prefix_gains_over_round_robin_is_told() -> None:
    row = {"requests": 240, "prompt": 1000, "seconds": 60.0, "p90": 2.0}
    plain = {**row, "strategy": "round-robin", "reused": 300, "median": 1.0}
    prefix = {**row, "strategy": "prefix", "reused": 600, "median": 0.6}
    killed = {"requests": 240, "failed": {"502 before the first byte": 2}, "saved by asking again": 2}
    figures = {"conversations": 40, "turns": 6, "strategies": [plain, prefix], "killed": killed}
    assert conversations.gains(figures) == pytest.approx((2.0, 0.4))
    told = conversations.table(figures)
    assert "| `prefix` | 240 | 1,000 | 600 | 60% | 600 ms | 2,000 ms | 60 |" in told
    assert (
        "240 of 240 answered; failed at first: 2 (502 before the first byte); 2 of these answered when asked again"
        in told
    )


def test_needs_follow_from_rates_repetition_and_costs() -> None:
    costs = cost.Costs(hit=0.001, miss=0.01, entry=1_000, answer=2.0)
    found = cost.needs(cost.Load(rate=100, repeated=0.8, ttl=60), costs)
    assert found.cores == pytest.approx(0.08 + 0.2)
    assert found.memory == pytest.approx(20 * 60 * 1_000)
    assert found.at_once == pytest.approx(40)


def test_an_entry_s_size_follows_its_compressed_bytes() -> None:
    assert cost.OVERHEAD < cost.entry(b"a" * 10_000, b"b" * 10_000) < cost.OVERHEAD + 100


def test_a_mix_repeats_as_often_as_it_should_and_nothing_else_twice() -> None:
    make = cost.mix(0.8, seed=1)
    asked = Counter(str(make(at)) for at in range(1_000))
    assert 750 < max(asked.values()) < 850
    assert sorted(asked.values())[-2] == 1


def test_how_far_off_the_model_is_is_told() -> None:
    checked = [{"name": "bytes", "model": 1_100.0, "is": 1_000.0}]
    costs = {"hit": 0.0002, "miss": 0.001, "entry": 1_500.0, "answer": 2.0}
    plan = {"rate": 1_000.0, "repeated": 0.8, "ttl": 3_600.0, "cores": 0.36, "memory": 2.0**31, "at_once": 400.0}
    told = cost.table({"checked": checked, "costs": costs, "plans": [plan]})
    assert "| bytes | 1,100 | 1,000 | +10% |" in told
    assert "| 1,000 | 80% | 1 h | 0.36 | 2.0 GiB | 400 |" in told
