"""Fixtures that several rooms share; a server that takes half a minute to start is started once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

pytest_plugins = ("tests.support.vllm", "tests.support.require")

ROOT = Path(__file__).parent
PROCESSES = ("cases", "workers", "dashboard", "observability")
"""Folders whose tests start the proxy as a process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, so that the quick run can leave it out."""
    for item in items:
        if item.path.is_relative_to(ROOT) and item.path.relative_to(ROOT).parts[0] in PROCESSES:
            item.add_marker(pytest.mark.process)
