"""What was taken to be written is written, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from samewise.core.entry import Entry
from samewise.ports import StoreUnavailable
from samewise.store.behind import WriteBehind
from tests.support.entries import make_entry
from tests.support.patience import ENOUGH

KEYS = [f"{number:064x}" for number in range(12)]


class Written:
    """Keys in the order in which they were written."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.keys: list[str] = []
        self._failure = failure

    async def __call__(self, written: Entry) -> bool:
        self.keys.append(written.key)
        if self._failure is not None:
            raise self._failure
        return True


@pytest.mark.parametrize("later", range(1, 12))
async def test_what_comes_while_the_last_writer_ends_is_written(later: int) -> None:
    write = Written()
    behind = WriteBehind(write)
    assert behind.offer(make_entry(key=KEYS[0]))
    for key in KEYS[1 : 1 + later]:
        asyncio.get_running_loop().call_soon(behind.offer, make_entry(key=key))
    async with asyncio.timeout(ENOUGH):
        await asyncio.sleep(0)
        for key in KEYS[: 1 + later]:
            await behind.written(key)
    assert sorted(write.keys) == KEYS[: 1 + later]
    assert len(behind) == 0


@pytest.mark.parametrize("failure", [StoreUnavailable("timeout"), ValueError("odd")])
async def test_what_cannot_be_written_keeps_nothing_else_from_it(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    write = Written(failure)
    behind = WriteBehind(write, writers=1)
    for key in KEYS:
        assert behind.offer(make_entry(key=key))
    async with asyncio.timeout(ENOUGH):
        await behind.flush()
    assert write.keys == KEYS and len(behind) == 0
    assert bool(caplog.records) is isinstance(failure, ValueError), "what nobody expects is logged"
