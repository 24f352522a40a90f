import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from samewise_backend.cli import main


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["manifest", "--model", "/nowhere"], "/nowhere"),
        (["serve", "--model", "/nowhere"], "/nowhere"),
        (["serve", "--engine", "other", "--model", "/nowhere"], "--engine"),
        (["serve"], "--model"),
        (["serve", "--model", "/nowhere", "--port", "70000"], "--port"),
        (["tiny-model"], "DIRECTORY"),
        (["tiny-model", "/proc/x"], "/proc/x"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_names_it(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert named in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dtype", "int4"], "--dtype"),
        (["--", "--bogus"], "--bogus"),
        (["--", "--max-model-len", "999999"], "--max-model-len"),
        (["--", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["--", "--chat-template", "/nowhere"], "--chat-template"),
        (["--", "--override-generation-config", "[1]"], "--override-generation-config"),
    ],
)
def test_a_wrong_engine_argument_ends_with_code_2_and_one_line(
    tiny_model: Path, arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    result = CliRunner().invoke(main, ["serve", "--model", str(tiny_model), *arguments])
    assert result.exit_code == 2
    assert named in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        ([], False),
        (["--", "--seed", "1"], True),
        (["--dtype", "bfloat16"], True),
        (["--", "--max-model-len", "100"], True),
        (["--", "--override-generation-config", '{"temperature": 0.5}'], True),
        (["--", "--generation-config", "auto"], True),
    ],
)
def test_what_decides_answers_decides_the_id(
    tiny_model: Path, arguments: list[str], differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    command = ["manifest", "--model", str(tiny_model), "--served-model-name", "m"]
    plain = json.loads(CliRunner().invoke(main, command).output)
    other = json.loads(CliRunner().invoke(main, [*command, *arguments]).output)
    assert (plain["id"] != other["id"]) is differs


def test_the_model_lies_where_it_wants_without_changing_the_id(
    tiny_model: Path, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found = [
        json.loads(CliRunner().invoke(main, ["manifest", "--model", str(place), "--served-model-name", "m"]).output)
        for place in (tiny_model, own_model)
    ]
    assert found[0]["id"] == found[1]["id"]


def test_defaults_of_the_checkpoint_are_told_where_they_count(own_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    (own_model / "generation_config.json").write_text('{"temperature": 0.3, "max_new_tokens": 5}')
    command = ["manifest", "--model", str(own_model), "--"]
    ignored = json.loads(CliRunner().invoke(main, command).output)["generation_defaults"]
    used = json.loads(CliRunner().invoke(main, [*command, "--generation-config", "auto"]).output)["generation_defaults"]
    assert (ignored["temperature"], "max_tokens" in ignored) == (1.0, False)
    assert (used["temperature"], used["max_tokens"]) == (0.3, 5)


def test_the_settings_are_printed_with_reason_and_cost() -> None:
    output = CliRunner().invoke(main, ["settings"]).output
    assert "`VLLM_BATCH_INVARIANT` | 1 | cuda" in output
