"""Every CPython of a version that this machine has, and what the core needs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-golden"
"""msgspec for each version, installed once."""

_ASK = "import platform; print(platform.python_implementation(), *platform.python_version_tuple()[:2])"


def interpreter(version: str) -> Path | None:
    """A CPython of this version that runs; None where there is none on PATH or beside this one."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    beside = sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
    return next((path for path in (*beside, *(folder / name for folder in folders)) if _runs(path, version)), None)


def libraries(version: str) -> Path:
    """A folder with msgspec for this version, made on the first call. Raises CalledProcessError where pip fails."""
    folder = CACHE / version
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=CACHE))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    chosen = ["--target", str(fresh), "--python-version", version, "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *chosen, "--no-deps", "msgspec"], check=True, timeout=120)
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    return folder


def _runs(python: Path, version: str) -> bool:
    if not python.exists():
        return False
    done = subprocess.run([str(python), "-c", _ASK], capture_output=True, text=True, check=False, timeout=30)
    return done.returncode == 0 and done.stdout.split() == ["CPython", *version.split(".")]
