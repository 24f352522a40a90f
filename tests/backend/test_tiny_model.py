import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from samewise_backend import tiny_model
from samewise_backend.cli import main


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_the_same_seed_gives_the_same_bytes_in_every_process(tiny_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samewise_backend.cli", "tiny-model", str(tmp_path / "again")]
    subprocess.run(command, check=True, capture_output=True)
    assert _files(tmp_path / "again") == _files(tiny_model)


def test_another_seed_changes_the_weights_and_nothing_else(tmp_path: Path, tiny_model: Path) -> None:
    from samewise_backend.tiny_model import Shape, write

    other, first = _files(write(tmp_path / "other", Shape(seed=1))), _files(tiny_model)
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_it_is_small_and_in_float32(tiny_model: Path) -> None:
    with safe_open(str(tiny_model / "model.safetensors"), "pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.float32"}
    assert 3_000_000 < sum(tensor.numel() for tensor in tensors) < 4_000_000


def test_another_width_keeps_the_proportions_and_one_that_the_heads_do_not_fit_is_refused(tmp_path: Path) -> None:
    written = CliRunner().invoke(main, ["tiny-model", str(tmp_path / "wide"), "--hidden", "64"])
    assert written.exit_code == 0, written.output
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (64, 172, 16)
    refused = CliRunner().invoke(main, ["tiny-model", str(tmp_path / "odd"), "--hidden", "100"])
    assert (refused.exit_code, "multiple of 16" in refused.output) == (2, True)
    assert not (tmp_path / "odd").exists()


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_every_text_comes_back_from_its_tokens(tokenizer: Tokenizer, text: str) -> None:
    if any(mark in text for mark in (tiny_model.BOS, tiny_model.EOS, *tiny_model.ROLES)):
        return
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_smaller_sharpness_makes_closer_calls(tmp_path: Path) -> None:
    import torch

    from samewise_backend.language_model import Context, LanguageModel

    gaps = {}
    for sharpness in (0.1, 4.0):
        directory = tiny_model.write(tmp_path / str(sharpness), tiny_model.Shape(sharpness=sharpness))
        model = LanguageModel(directory, dtype=torch.float32, device="cpu")
        best = model.forward(Context(), [10, 20, 30]).topk(2).values
        gaps[sharpness] = float(best[0] - best[1])
    assert gaps[0.1] < gaps[4.0] / 10
