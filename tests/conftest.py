"""Fixtures that several rooms share; a server that takes half a minute to start is started once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

pytest_plugins = ("tests.support.vllm", "tests.support.require")

ROOT = Path(__file__).parent
PROCESSES = tuple(
    ROOT / place
    for place in (
        "cases",
        "workers",
        "dashboard",
        "observability",
        "backend",
        "cli/test_progress.py",
        "cli/test_verify_and_doctor.py",
        "loadtest/test_drift.py",
    )
)
"""Whose tests start the proxy as a process, or compute with a model."""


def _starts_processes(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in PROCESSES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, so that the quick run can leave it out."""
    for item in items:
        if _starts_processes(item.path):
            item.add_marker(pytest.mark.process)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out by its mark is not even imported: torch and client libraries take seconds."""
    marks = config.getoption("markexpr").split(" and ")
    left_out = "not process" in marks and not any(" or " in mark for mark in marks)
    return True if left_out and _starts_processes(collection_path) else None
