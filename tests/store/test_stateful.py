"""Any order of puts, discards, flushes, reopenings and hours gives what a simple model gives."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from samewise.core.entry import Entry
from samewise.store.factory import Stores, open_store
from tests.support.clock import ManualClock
from tests.support.entries import key_of, make_entry
from tests.support.patience import ENOUGH
from tests.support.redis import RedisServer

SEGMENT = 500
NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)


class StoreMachine(RuleBasedStateMachine):
    """The model: what the last admitted put of each key was, and the highest fence of each."""

    url = ""
    memory_bytes = 0
    segment = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.namespace = uuid.uuid4().hex
        self.entries: dict[str, Entry] = {}
        self.fences: dict[str, int] = {}
        self.count = 0
        self.stores = self._open()

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def _open(self) -> Stores:
        stores: Stores = self._run(
            open_store(
                self.url.format(folder=self.folder.name),
                clock=self.clock,
                memory_bytes=self.memory_bytes,
                timeout=ENOUGH,
                segment=self.segment,
                namespace=self.namespace,
            )
        )
        return stores

    @rule(name=names, began=st.integers(0, 4), ttl=st.sampled_from([500.0, 5000.0]))
    def put(self, name: str, began: int, ttl: float) -> None:
        self.count += 1
        entry = make_entry(name, began=began, ttl=ttl, created=self.clock.now(), body=_said(self.count))
        kept = self._run(self.stores.store.put(entry))
        assert kept == (began >= self.fences.get(name, 0))
        if kept:
            self.entries[name] = entry

    @rule(name=names, fence=st.integers(0, 4))
    def discard(self, name: str, fence: int) -> None:
        there = self.entries.pop(name, None)
        gone = self._run(self.stores.store.discard(key_of(name), fence))
        if there is not None and there.fresh(self.clock.now()):
            assert gone
        self.fences[name] = max(fence, self.fences.get(name, 0))

    @rule(seconds=st.sampled_from([100.0, 400.0, 2000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        self._run(self.stores.store.flush())

    @rule(name=names)
    def get(self, name: str) -> None:
        self._agree(name)

    @rule()
    def scan(self) -> None:
        async def all_of() -> list[Entry]:
            return [entry async for entry in self.stores.store.scan()]

        self._run(self.stores.store.flush())
        expected = [entry for entry in self.entries.values() if entry.fresh(self.clock.now())]
        assert sorted(self._run(all_of()), key=lambda entry: entry.key) == sorted(expected, key=lambda e: e.key)

    @invariant()
    def agrees(self) -> None:
        for name in NAMES:
            self._agree(name)

    def _agree(self, name: str) -> None:
        found = self._run(self.stores.store.get(key_of(name)))
        expected = self.entries.get(name)
        if expected is not None and not expected.fresh(self.clock.now()):
            expected = None
        assert (found.entry if found else None) == expected

    def teardown(self) -> None:
        self._run(self.stores.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()


def _said(number: int) -> bytes:
    """Another body for each number, which nothing compresses; every other one is long enough for segments."""
    return b"%d" % number + hashlib.shake_256(b"%d" % number).digest(0 if number % 2 else 2 * SEGMENT + number)


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> Iterator[str]:
    yield shared_redis.url


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["alone", "behind-memory"])
@pytest.mark.parametrize(
    ("kind", "segment"), [("memory", 0), ("sqlite", 0), ("redis", 0), ("sqlite", SEGMENT), ("redis", SEGMENT)]
)
def test_it_behaves_as_the_model(kind: str, segment: int, memory: int, redis_url: str) -> None:
    urls = {"memory": "memory://", "sqlite": "sqlite:///{folder}/s.db", "redis": redis_url}
    bytes_ = memory or (1 << 20 if kind == "memory" else 0)
    machine = type("Machine", (StoreMachine,), {"url": urls[kind], "memory_bytes": bytes_, "segment": segment})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
