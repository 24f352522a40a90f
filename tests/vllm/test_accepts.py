"""What a profile may hold is what the installed vLLM accepts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from samewise.core.sampling import FIELDS, validate
from tests.support.vllm import require_vllm, vllm_python

GRID: dict[str, list[Any]] = {
    "temperature": [0, 0.005, 0.7, 2, 2.1, -0.1, "warm"],
    "top_p": [0, 0.1, 1, 1.1, -1, "x"],
    "top_k": [-2, -1, 0, 1, 5, 2.5, "x"],
    "min_p": [0, 0.5, 1, 1.1, -0.1],
    "repetition_penalty": [0, 0.1, 1, 2.5, -1],
    "presence_penalty": [-2, 2, -2.1, 2.1],
    "frequency_penalty": [-2, 2, -2.1, 2.1],
    "seed": [0, -1, 7, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 7.5],
    "max_tokens": [1, 16, 0, -1, 2.5],
    "min_tokens": [0, 1, -1],
    "n": [1, 2, 16384, 16385, 0],
    "stop": ["", "a", [], ["a"], [""], 5],
    "stop_token_ids": [[], [1], ["a"]],
    "bad_words": [[], ["a"], [""]],
    "logit_bias": [{}, {"5": 1}, {"x": 1}, {"5": "y"}],
    "ignore_eos": [True, False, "perhaps"],
    "skip_special_tokens": [True, False, "perhaps"],
    "include_stop_str_in_output": [True, False, "perhaps"],
}
STRICTER = [{"logit_bias": {"x": 1}}, {"stop_token_ids": ["a"]}]
"""What vLLM's completions take at this point and refuse, or stumble over, later."""
TOGETHER = [{"min_tokens": 5, "max_tokens": 4}, {"n": 2, "temperature": 0}, {"min_tokens": 4, "max_tokens": 4}]


def cases() -> list[dict[str, Any]]:
    return [{name: value} for name, values in GRID.items() for value in values] + TOGETHER


def test_every_field_of_a_profile_is_tried() -> None:
    assert set(GRID) == FIELDS


@pytest.mark.vllm
def test_a_profile_takes_what_the_installed_vllm_takes() -> None:
    require_vllm()
    done = subprocess.run(
        [str(vllm_python()), str(Path(__file__).parent / "accepts.py")],
        input=json.dumps(cases()),
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    accepted = json.loads(done.stdout[done.stdout.rindex("[") :])
    ours = [not validate(case) for case in cases()]
    unlike = [
        (case, "vLLM accepts it" if theirs else "vLLM refuses it")
        for case, mine, theirs in zip(cases(), ours, accepted, strict=True)
        if mine != theirs and case not in STRICTER
    ]
    assert unlike == []
    assert {True, False} == set(accepted)
