from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samewise.core.key import KEY_VERSION
from tests.core.golden import FILE, wrong
from tests.core.interpreters import interpreter, libraries

_ROOT = FILE.parent.parent.parent
_CASES: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
_ADVICE = (
    "A key has changed, so that every recorded answer of its kind would be lost, or found where it doesn't belong. If "
    "that is meant, it needs a new key version (samewise.core.key.KEY_VERSION) and a line in the changelog; then renew "
    "tests/golden/keys.json with `PYTHONPATH=proxy python -m tests.core.golden`."
)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: str(case["name"]))
def test_keys_are_what_they_were(case: dict[str, Any]) -> None:
    assert not wrong([case]), _ADVICE


def test_every_golden_key_is_the_hash_of_its_preimage() -> None:
    for case in _CASES:
        image = case["preimage"].encode("utf-8", "surrogatepass")
        assert hashlib.sha256(image).hexdigest() == case["key"]
        assert image.startswith(b'{"v":%d,' % KEY_VERSION), _ADVICE


def test_the_cases_that_say_the_same_share_a_key_and_no_others_do() -> None:
    same = {"greedy, nothing known of the backend", "other order, escapes, white space and numbers"}
    keys = {case["key"] for case in _CASES}
    assert len(keys) == len(_CASES) - 1
    assert len({case["key"] for case in _CASES if case["name"] in same}) == 1


def test_a_moved_key_is_noticed() -> None:
    assert wrong([{**_CASES[0], "key": "0" * 64}])
    assert wrong([{**_CASES[0], "preimage": _CASES[0]["preimage"] + " "}])


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_another_process_finds_the_same_keys(hash_seed: str) -> None:
    assert _wrong_in(sys.executable, PYTHONHASHSEED=hash_seed, LC_ALL="C") == []


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_another_python_finds_the_same_keys(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"this machine has no CPython {version}")
    assert _wrong_in(str(python), PYTHONPATH=str(libraries(version)), PYTHONDONTWRITEBYTECODE="1") == []


def _wrong_in(python: str, **variables: str) -> Any:
    script = (
        "import json, sys; sys.path[:0] = ['proxy', '.']\n"
        "from tests.core.golden import FILE, wrong\n"
        "print(json.dumps(wrong(json.loads(FILE.read_text('utf-8')))))"
    )
    done = subprocess.run(
        [python, "-c", script],
        cwd=Path(_ROOT),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)
