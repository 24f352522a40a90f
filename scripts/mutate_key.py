"""Breaks the key in small ways, one at a time, in a copy; each must make a test fail. Exit code 1 where one does not.

    scripts/mutate_key.py [WORD ...]     only the mutants whose name has one of the words

The golden keys are left out: they would find any change, and tell nothing about the other tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORE = "proxy/samewise/core"
AT_ONCE = 2
COPIED = ("proxy", "backend", "tests/core", "tests/support", "tests/conftest.py", "pyproject.toml")
TESTS = (
    "tests/core/test_key.py",
    "tests/core/test_request.py",
    "tests/core/test_sampling.py",
    "tests/core/test_controls.py",
    "tests/core/test_body.py",
    "tests/core/families",
)
QUICK = """
import hypothesis

hypothesis.settings.register_profile("mutants", max_examples=30, deadline=None)
hypothesis.settings.load_profile("mutants")
"""


class Mutant(NamedTuple):
    """`old` stands once in the file of `core/`, and becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant("drop the tenant", "key.py", '"tenant": tenant,', '"tenant": "",'),
    Mutant("drop the namespace", "key.py", '"namespace": namespace,', '"namespace": "",'),
    Mutant("drop the family", "key.py", '"family": family,', '"family": "",'),
    Mutant("drop the model", "key.py", '"model": model,', '"model": "",'),
    Mutant("drop the environment", "key.py", '"environment": environment.id,', '"environment": "",'),
    Mutant("drop one epoch", "key.py", "epochs.environment, epochs.tenant", "epochs.environment, 0"),
    Mutant("merge two epochs", "key.py", "epochs.all, epochs.model,", "epochs.all + epochs.model, 0,"),
    Mutant("drop the sample", "key.py", '"sample": sample,', '"sample": 0,'),
    Mutant("drop the variant", "key.py", "if variant else {}", "if False else {}"),
    Mutant("drop one member of the request", "key.py", "if name != _MODEL}", 'if name not in (_MODEL, "tool_choice")}'),
    Mutant(
        "drop members that nobody has heard of",
        "key.py",
        "if name != _MODEL}",
        'if name != _MODEL and name[:2] != "zz"}',
    ),
    Mutant("keep the order of members", "key.py", "for name in sorted(request)", "for name in request"),
    Mutant("sort inside of schemas", "key.py", "    return encode(\n", "    return canonical.encode_sorted(\n"),
    Mutant("two spellings of a number", "key.py", "canonical.normalise(value) if", "value if"),
    Mutant("one spelling of numbers at any depth", "key.py", "name == _TOKEN_WEIGHTS else value", "True else value"),
    Mutant(
        "leave weights of tokens as they are spelled", "key.py", "name == _TOKEN_WEIGHTS else value", "False else value"
    ),
    Mutant("half of the hash", "key.py", "return canonical.sha256(image)", "return canonical.sha256(image)[:32] * 2"),
    Mutant("the same pinned seed for all", "key.py", 'b"samewise seed\\n" + image', 'b"samewise seed\\n"'),
    Mutant("negative pinned seeds", "key.py", ">> 1) % _PIN_RANGE", ">> 1) - 2**63"),
    Mutant(
        "lone surrogates are one",
        "canonical.py",
        'return _encode(value).encode("utf-8", "surrogatepass")',
        'return _encode(value).encode("utf-8", "replace")',
    ),
    Mutant(
        "whole numbers as doubles",
        "body.py",
        "object_pairs_hook=_object, parse_float",
        "object_pairs_hook=_object, parse_int=lambda digits: int(float(digits)), parse_float",
    ),
    Mutant("the last of two members counts", "body.py", "if len(members) != len(pairs):", "if False:"),
    Mutant(
        "the seed is delivery",
        "families/choices.py",
        "DELIVERY = frozenset(\n    {",
        'DELIVERY = frozenset(\n    {\n        "seed",',
    ),
    Mutant(
        "defaults are not spelled out",
        "sampling.py",
        "    if defaults is not None:\n        _fill",
        "    if False:\n        _fill",
    ),
    Mutant(
        "a profile's values are not in the key",
        "sampling.py",
        "        sent[field] = value\n        origins[field] = snapshot.label()",
        "        origins[field] = snapshot.label()",
    ),
    Mutant(
        "null is no value of its own for limits", "sampling.py", "if name in _LENGTHS and name in sent:", "if False:"
    ),
    Mutant("-1 is a seed", "sampling.py", "and value != -1 else None", "else None"),
    Mutant("an unknown temperature is 0", "sampling.py", "return is_number(value) and value == 0", "return not value"),
    Mutant(
        "what only the key knows is left out",
        "request.py",
        "if name not in effective.omit} | extra",
        "if name not in effective.omit}",
    ),
    Mutant(
        "the query is not in the key",
        "controls.py",
        'variant=(("?", query), *controls.variant)',
        "variant=controls.variant",
    ),
    Mutant("namespaces are one", "request.py", "namespace=self.controls.namespace,", 'namespace="",'),
)


def main(words: list[str]) -> int:
    """Try them; tell which survive."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if stale := [mutant.name for mutant in chosen if not stands(mutant)]:
        print(f"what these break is not there once: {', '.join(stale)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="samewise-mutants-") as folder:
        clean = _copy(Path(folder) / "clean")
        if (failure := _fails(clean)) is not None:
            print(f"the tests fail before anything is broken:\n{failure}", file=sys.stderr)
            return 2

        def trial(mutant: Mutant) -> bool:
            place = _copy(Path(folder) / mutant.name.replace(" ", "-"))
            file = place / CORE / mutant.file
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
            failure = _fails(place)
            shutil.rmtree(place)
            print(f"{'caught  ' if failure else 'SURVIVED'} {mutant.name:45} {failure or ''}", flush=True)
            return failure is not None

        with ThreadPoolExecutor(AT_ONCE) as pool:
            caught = list(pool.map(trial, chosen))
    print(f"{sum(caught)} of {len(caught)} caught")
    return int(not all(caught))


def stands(mutant: Mutant) -> bool:
    """True where what it breaks is there, once."""
    return (ROOT / CORE / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


def _copy(place: Path) -> Path:
    for name in COPIED:
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (place / "conftest.py").write_text(QUICK, encoding="utf-8")
    return place


def _fails(place: Path) -> str | None:
    """The first test that fails, None where none does."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *TESTS],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": f"{place / 'proxy'}{os.pathsep}{place / 'backend'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].partition(" - ")[0] if lines else (done.stdout + done.stderr)[-500:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
