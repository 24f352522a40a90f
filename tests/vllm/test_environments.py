"""What makes another identity of a vLLM that hasn't started, and what doesn't."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samewise_backend import tiny_model as tiny
from tests.support.vllm import require_vllm, vllm_python

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    require_vllm()
    return tiny.write(tmp_path / "model")


def planned(model: Path, *words: str) -> dict[str, Any]:
    """The identity part of what `samewise-backend manifest` says before vLLM starts."""
    python = vllm_python()
    assert python is not None
    command = [str(python), "-m", "samewise_backend.cli", "manifest", "--engine", "vllm", "--model", str(model)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True, env=dict(os.environ))
    manifest: dict[str, Any] = json.loads(done.stdout)
    del manifest["info"]
    return manifest


def _weights(model: Path) -> None:
    tiny.write(model, tiny.Shape(seed=1))


def _defaults(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "eos_token_id": 1}))


def _template(model: Path) -> None:
    for path in (model / "chat_template.jinja", model / "tokenizer_config.json"):
        if path.exists():
            path.write_text(path.read_text().replace("tools: ", "instruments: "))


@pytest.mark.parametrize(
    ("change", "group"),
    [(_weights, "weights"), (_defaults, "generation_config"), (_template, "chat_template")],
    ids=["weights", "defaults", "template"],
)
def test_files_replaced_in_place_are_another_identity_and_back_again_the_old_one(
    model: Path, tmp_path: Path, change: Callable[[Path], None], group: str
) -> None:
    kept = shutil.copytree(model, tmp_path / "kept")
    before = planned(model)
    change(model)
    after = planned(model)
    assert after[group] != before[group]
    shutil.rmtree(model)
    shutil.copytree(kept, model)
    assert planned(model) == before


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "bfloat16"),
        ("--", "--seed", "7"),
        ("--", "--enable-lora", "--lora-modules", "a=/nowhere"),
        ("--", "--override-generation-config", '{"temperature": 0.2}'),
        ("--", "--max-num-seqs", "4"),
    ],
    ids=["dtype", "seed", "lora", "defaults", "batch"],
)
def test_what_an_operator_asks_of_the_engine_is_identity(model: Path, words: tuple[str, ...]) -> None:
    assert planned(model, *words) != planned(model)


def test_where_it_listens_and_what_it_is_called_by_is_no_identity_of_the_answer(model: Path) -> None:
    assert planned(model, "--", "--port", "9", "--api-key", "secret") == planned(model)
