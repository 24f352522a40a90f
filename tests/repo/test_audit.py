"""`make audit` is satisfied only when somebody was asked about every pin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = """#!{python}
import json, sys
answers = json.loads({answers!r})
file, service = sys.argv[sys.argv.index("--requirement") + 1], sys.argv[sys.argv.index("--vulnerability-service") + 1]
if service not in answers:
    sys.exit("no such host")
told = []
for pin in open(file).read().split():
    name, _, version = pin.partition("==")
    known = answers[service].get(name)
    told.append({{"name": name, "skip_reason": "not found"}} if known is None else
                {{"name": name, "version": version, "vulns": known}})
print(json.dumps({{"dependencies": told, "fixes": []}}))
"""
BAD = {"id": "GHSA-1", "fix_versions": ["2.1"]}


@pytest.mark.parametrize(
    ("answers", "code", "says"),
    [
        ({"pypi": {"one": [], "two": []}}, 0, "2 of 2 pins looked up, 0 known"),
        ({"pypi": {"one": [], "two": [BAD]}}, 1, "two 2.0: GHSA-1, mended in 2.1"),
        ({"pypi": {"one": []}, "osv": {"two": []}}, 0, "2 of 2 pins looked up"),
        ({"pypi": {"one": []}, "osv": {"two": [BAD]}}, 1, "GHSA-1"),
        ({"osv": {"one": [], "two": []}}, 0, "2 of 2 pins looked up"),
        ({"pypi": {"one": []}}, 3, "nothing is known about 1 pins (no answer from osv): two==2.0"),
        ({"pypi": {"one": [BAD]}}, 1, "1 of 2 pins looked up, 1 known"),
        ({}, 3, "nothing is known about 2 pins (no answer from pypi and osv)"),
    ],
)
def test_only_what_was_looked_up_and_is_clean_is_fine(
    tmp_path: Path, answers: dict[str, Any], code: int, says: str
) -> None:
    tool, pins = tmp_path / "pip-audit", tmp_path / "pins.txt"
    tool.write_text(TOOL.format(python=sys.executable, answers=json.dumps(answers)))
    tool.chmod(0o755)
    pins.write_text("# pins\none==1.0\ntwo==2.0\n")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/audit.py", tool, pins], capture_output=True, text=True, check=False
    )
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr
