"""CI's promise that vLLM and Redis tests ran: a skip of them fails, elsewhere it stays a skip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.vllm
def test_vllm():
    pytest.skip("no wheel here")

@pytest.mark.vllm
@pytest.mark.skip(reason="marked")
def test_marked():
    pass

@pytest.mark.vllm
@pytest.mark.xfail
def test_known():
    assert False

def test_plain():
    pytest.skip("no promtool")
"""
MODULE = """
import pytest
pytest.importorskip("no_such_module")
"""


def run(folder: Path, **variables: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  vllm: x\n  redis: x\n")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **alone, **variables}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.require", "-p", "no:cacheprovider", "-rf", "-q", "."],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_skip_stays_a_skip_where_nothing_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    code, output = run(tmp_path)
    assert code == 0, output
    assert "3 skipped, 1 xfailed" in output


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_or_zero_variable_requires_nothing(tmp_path: Path, value: str) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    assert run(tmp_path, SAMEWISE_REQUIRE_VLLM=value)[0] == 0


def test_a_required_test_that_skips_fails_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    code, output = run(tmp_path, SAMEWISE_REQUIRE_VLLM="1")
    assert code == 1, output
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in output
    assert "skipped, but this run requires vllm" in output


def test_a_module_that_skips_as_a_whole_fails_where_something_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    assert run(tmp_path)[0] == 5
    code, output = run(tmp_path, SAMEWISE_REQUIRE_VLLM="1")
    assert code != 0
    assert "skipped as a whole" in output
