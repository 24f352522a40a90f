"""What is wrong, and what to do: a line for each fact that matters."""

from __future__ import annotations

from typing import Any

import pytest

from samewise.core import diagnosis
from samewise.core.diagnosis import Finding
from samewise.core.fingerprint import from_manifest

FINE = {"available": True, "version": "7.2", "maxmemory": 1, "policy": "allkeys-lru", "persistent": True, "skew": 0.1}
MANIFEST = {"id": "e" * 32, "engine": "vllm", "dtype": "float32", "device": {"kind": "cpu"}}


def worst(findings: list[Finding]) -> str:
    states = [found.state for found in findings]
    return "error" if "error" in states else "warning" if "warning" in states else "ok"


def test_whatever_is_wrong_comes_with_what_to_do() -> None:
    found = [
        *diagnosis.store("redis://far:6379", {**FINE, "maxmemory": 0, "persistent": False, "skew": -9}),
        *diagnosis.store("redis://far:6379", {"available": False, "error": "timeout"}),
        *diagnosis.upstreams([]),
        *diagnosis.upstreams([{"url": "u", "healthy": False, "error": "refused", "skew": 60.0}]),
        *diagnosis.environments([], []),
        *diagnosis.environments([from_manifest(MANIFEST, "observed")], []),
    ]
    assert {each.state for each in found} == {"ok", "warning", "error"}
    assert all(bool(each.do) == (each.state != "ok") for each in found)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"maxmemory": 0}, "eviction"),
        ({"policy": "noeviction"}, "eviction"),
        ({"persistent": False}, "persistence"),
        ({"skew": 30.0}, "store clock"),
        ({"hidden": "noperm"}, "store settings"),
    ],
)
def test_a_redis_that_may_disappoint_is_a_warning(change: dict[str, Any], check: str) -> None:
    assert worst(list(diagnosis.store("redis://127.0.0.1/0", FINE))) == "ok"
    found = list(diagnosis.store("redis://127.0.0.1/0", {**FINE, **change}))
    assert [each.check for each in found if each.state == "warning"] == [check]


@pytest.mark.parametrize(
    ("url", "state"),
    [
        ("redis://127.0.0.1:6379/0", "ok"),
        ("redis://user:secret@cache.example:6379/0", "warning"),
        ("rediss://cache.example:6379/0", "ok"),
        ("sqlite:///x.db", "ok"),
        ("memory://", "warning"),
    ],
)
def test_entries_that_travel_in_the_clear_or_die_with_the_process_are_a_warning(url: str, state: str) -> None:
    assert worst(list(diagnosis.store(url, FINE))) == state


@pytest.mark.parametrize(
    ("change", "origin", "state"),
    [
        ({}, "contract", "ok"),
        ({}, "observed", "warning"),
        ({}, "label", "warning"),
        ({"dtype": "bfloat16"}, "contract", "warning"),
        ({"dtype": "bfloat16", "batch_invariant": True}, "contract", "ok"),
        ({"device": {"kind": "cuda"}}, "contract", "warning"),
        ({"weights_on_disk": "sha256:1"}, "contract", "error"),
        ({"weights": "unknown:1"}, "contract", "warning"),
        ({"mutated": "i:1"}, "contract", "warning"),
    ],
)
def test_what_an_environment_says_of_itself_is_judged(change: dict[str, Any], origin: str, state: str) -> None:
    environment = from_manifest({**MANIFEST, **change}, origin)
    assert worst(list(diagnosis.environments([environment], [environment.id]))) == state
    waiting = list(diagnosis.environments([environment], []))
    assert any(environment.id in each.do for each in waiting)
