"""The file that receipts are in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from samewise.core.receipts import Receipt, append, check
from samewise.store.receipt_log import ReceiptLog


def sign(data: bytes) -> str:
    return "s" + data[:8].decode()


def verify(data: bytes, signature: str) -> bool:
    return signature == sign(data)


ONE = Receipt(
    id="0", at=1.0, cache="hit", family="chat", model="m", tenant="", key="k", environment="e", snapshot="s",
    request="r", output="o",
)  # fmt: skip


def receipt(name: str) -> Receipt:
    return msgspec.structs.replace(ONE, id=name)


@pytest.fixture
async def open_log(tmp_path: Path) -> AsyncIterator[Callable[[], ReceiptLog]]:
    opened: list[ReceiptLog] = []

    def open_one() -> ReceiptLog:
        log = ReceiptLog(tmp_path / "receipts.jsonl", sign=sign, verify=verify)
        log.start()
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        await log.close()


async def test_what_was_appended_is_found_and_whole(open_log: Callable[[], ReceiptLog]) -> None:
    log = open_log()
    for number in range(2000):
        log.append(receipt(str(number)))
    line = await log.get("1234")
    assert line is not None
    assert (line.number, line.receipt.id) == (1235, "1234")
    assert await log.get("never") is None
    found = await log.check()
    assert found.whole
    assert found.lines == 2000


async def test_several_writers_make_one_chain(open_log: Callable[[], ReceiptLog]) -> None:
    logs = [open_log() for _ in range(3)]
    for number in range(300):
        logs[number % 3].append(receipt(str(number)))
        if number % 50 == 0:
            await asyncio.gather(*(log.flush() for log in logs))
    await asyncio.gather(*(log.flush() for log in logs))
    found = await logs[0].check()
    assert found.whole
    assert found.lines == 300


async def test_it_goes_on_where_it_ended(open_log: Callable[[], ReceiptLog]) -> None:
    first = open_log()
    first.append(receipt("a"))
    await first.flush()
    second = open_log()
    second.append(receipt("b"))
    found = await second.check()
    assert found.whole
    assert found.lines == 2


async def test_a_line_that_a_crash_cut_spoils_no_other(open_log: Callable[[], ReceiptLog], tmp_path: Path) -> None:
    first = open_log()
    first.append(receipt("a"))
    await first.flush()
    with (tmp_path / "receipts.jsonl").open("ab") as file:
        file.write(append(None, receipt("cut"), sign).encoded()[:-40])
    second = open_log()
    second.append(receipt("b"))
    line = await second.get("b")
    assert line is not None
    assert line.number == 2
    found = await second.check()
    assert found.broken is not None
    assert found.broken.place == 2
    lines = (tmp_path / "receipts.jsonl").read_bytes().splitlines(keepends=True)
    assert check([lines[0], lines[2]], verify).whole


async def test_the_file_is_its_owners_alone(open_log: Callable[[], ReceiptLog], tmp_path: Path) -> None:
    open_log()
    assert (tmp_path / "receipts.jsonl").stat().st_mode & 0o077 == 0


async def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        ReceiptLog(tmp_path / "nowhere" / "log", sign=sign, verify=verify)
