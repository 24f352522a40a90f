"""Records as the pipeline makes them, and an observer whose clock stands still."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samewise.core.answer import Usage
from samewise.ports import Record
from samewise.telemetry import Log, Telemetry
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def no_otel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def told() -> Iterator[list[logging.LogRecord]]:
    """Log records of this test's logger."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("samewise.test")
    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)


@pytest.fixture
def observer(clock: ManualClock, told: list[logging.LogRecord]) -> Telemetry:
    return Telemetry(clock=clock, log=Log(logging.getLogger("samewise.test")))


@pytest.fixture
def record(clock: ManualClock) -> Callable[..., Record]:
    """A record of a request that ends now and took a quarter of a second."""

    def make(outcome: Any = "hit", **changes: Any) -> Record:
        values: dict[str, Any] = {
            "request_id": "r", "endpoint": "chat", "model": "m", "tenant": "", "status": 200,
            "started": clock.monotonic() - 0.25, "duration": 0.25, "usage": Usage(10, 18, 0),
        }  # fmt: skip
        return Record(outcome=outcome, **{**values, **changes})

    return make
