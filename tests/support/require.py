"""A pytest plugin: what this run must not skip.

With `SAMEWISE_REQUIRE_VLLM=1` a test marked `vllm` that skips is a failure, and so for `redis`. Where such a
variable is set, a module that skips as a whole is a failure too, since nobody can tell what was in it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MARKS = ("vllm", "redis", "browser")


def required() -> frozenset[str]:
    """Marks whose tests must run."""
    return frozenset(mark for mark in MARKS if os.environ.get(f"SAMEWISE_REQUIRE_{mark.upper()}", "0") not in ("", "0"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needed = sorted(mark for mark in required() if item.get_closest_marker(mark) is not None)
    if report.skipped and needed and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but this run requires {', '.join(needed)}: {_why(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and required():
        report.outcome = "failed"
        report.longrepr = f"skipped as a whole, but this run requires its tests: {_why(report.longrepr)}"
    return report


def _why(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
