"""Everything fails at random: a short run of the scenario, and that its judge can tell right from wrong."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadtest.chaos import faults
from loadtest.chaos.judge import judge
from loadtest.chaos.load import Asked
from loadtest.chaos.run import run
from loadtest.chaos.world import Truth, World
from tests.support.redis import RedisServer

CALL = {"prompt": "p", "seed": 1, "asker": "a", "environment": "e", "at": 5.0}
HEADERS = {"content-type": "application/json", "x-samewise-cache": "HIT", "x-samewise-environment": "e"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102])
async def test_no_answer_is_wrong_while_everything_fails(seed: int) -> None:
    found = await run(seed, requests=1500, concurrency=24, seconds=60)
    assert found["wrong"] == []
    assert found["outcomes"]["HIT"] > 30
    assert len(found["faults"]) >= 3


def truth() -> Truth:
    made = Truth()
    made.calls[1] = dict(CALL)
    return made


def answered(text: str | None = None, **changes: Any) -> Asked:
    told = json.dumps({**CALL, "call": 1, "at": None}) + " w end" if text is None else text
    body = {"messages": [{"role": "user", "content": "p"}], "seed": 1}
    made = Asked(0, "a", body, {}, began=10.0, ended=11.0, status=200, got=dict(HEADERS))
    made.raw = json.dumps({"choices": [{"message": {"content": told}}]}).encode()
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def verdict(asked: Asked, *windows: tuple[str, float, float | None], ends: list[dict[str, Any]] | None = None) -> bool:
    made = truth()
    made.windows += windows
    return judge(asked, made, ends or []) is None


async def test_no_two_faults_that_may_come_at_once_break_the_same_thing() -> None:
    """A fault that meets its victim dead fails itself, and the run with it (connection refused)."""
    redis = RedisServer()
    redis.kill()
    with pytest.raises(ConnectionRefusedError):
        await faults.redis_lies(cast(World, SimpleNamespace(redis=redis)), 1.0)
    redis.close()
    things = {"redis": 0, "backend": 0, "proxy": 0, "model": 0}
    for one, other in itertools.combinations(faults.FAULTS, 2):
        (thing,) = [thing for thing in things if thing in one.__name__]
        things[thing] += 1
        assert faults.apart(one, other) == (thing not in other.__name__)
    assert all(things.values())


def test_a_right_answer_is_right() -> None:
    assert verdict(answered())


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "b"},
        {"body": {"messages": [{"role": "user", "content": "q"}], "seed": 1}},
        {"body": {"messages": [{"role": "user", "content": "p"}], "seed": 2}},
        {"body": {"messages": [{"role": "user", "content": "p"}], "seed": 1, "stream": True}},
        {"got": {**HEADERS, "x-samewise-environment": "other"}},
        {"got": {"content-type": "application/json"}},
        {"text": json.dumps({**CALL, "call": 2, "at": None}) + " end"},
        {"text": json.dumps({**CALL, "call": 1, "at": None, "seed": 3}) + " end"},
        {"text": json.dumps({**CALL, "call": 1, "at": None})},
        {"failure": "hang"},
        {"failure": "cut"},
        {"failure": "connection: X"},
        {"status": 500, "raw": b'{"error":{"message":"mock says 500","code":500}}'},
        {"status": 502, "raw": b'{"error":{"message":"m","code":"upstream_unreachable"}}'},
        {"raw": b'{"error": {"message": "mock says error"}}'},
    ],
    ids=str,
)
def test_whatever_is_wrong_is_found(change: dict[str, Any]) -> None:
    assert not verdict(answered(**change))


def test_what_was_broken_on_purpose_excuses_its_errors_and_no_other() -> None:
    failed = answered(status=502, raw=b'{"error":{"message":"m","code":"upstream_unreachable"}}')
    assert verdict(failed, ("backend", 9.0, 10.5))
    assert verdict(failed, ("backend", 9.0, None))
    assert not verdict(failed, ("backend", 1.0, 9.5))
    gone = answered(failure="connection: X")
    assert verdict(gone, ("proxy-0", 9.0, None))
    assert not verdict(gone, ("proxy-1", 9.0, None))
    ours = answered(status=500, raw=b'{"error":{"message":"m","code":"internal"}}')
    assert not verdict(ours, ("backend", 9.0, None), ("proxy-0", 9.0, None))


def test_a_fault_is_over_when_what_was_asked_in_its_time_has_ended() -> None:
    made = truth()
    made.windows += [("backend", 1.0, 2.0), ("backend", 8.0, None)]
    made.outlast([(0.0, 0.5), (1.5, 4.0), (3.0, 6.0)])
    assert made.windows == [("backend", 1.0, 4.0), ("backend", 8.0, None)]


def test_what_was_ended_may_not_be_served_by_who_knows_it() -> None:
    end = {"proxy": 0, "generation": 0, "scope": "all", "value": "", "asked": 6.0, "at": 7.0}
    assert not verdict(answered(), ends=[end])
    assert not verdict(answered(), ends=[{**end, "scope": "tenant", "value": "a"}])
    for other in (
        {"proxy": 1},
        {"generation": 1},
        {"asked": 4.0},
        {"at": 10.5},
        {"scope": "tenant", "value": "b"},
    ):
        assert verdict(answered(), ends=[{**end, **other}])
