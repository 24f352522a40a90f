"""The recent past is bounded, listeners hold up nobody, and logs say things once."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samewise.ports import Notice, Record
from samewise.telemetry import Log, Recent, Repeats, Telemetry, start_logging
from tests.support.clock import ManualClock
from tests.support.patience import ENOUGH

Make = Callable[..., Record]


async def test_a_listener_hears_what_happens_from_now_on(observer: Telemetry, record: Make) -> None:
    trace = observer.begin({}, "x")
    observer.finish(trace, record("miss", request_id="before"))
    events = observer.events()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    observer.finish(trace, record("hit", request_id="after", leader=trace))
    observer.notice(Notice(kind="control", attributes={"kind": "invalidate"}, detail={"by": "me"}))
    first, second = await waiting, await anext(events)
    assert (first["event"], first["request_id"], first["outcome"]) == ("request", "after", "hit")
    assert (second["event"], second["kind"], second["detail"]) == ("notice", "control", {"by": "me"})
    json.dumps([first, second])
    await events.aclose()  # type: ignore[attr-defined]
    assert observer.recent.listening == 0


async def test_a_slow_listener_loses_the_oldest_and_only_itself(clock: ManualClock, record: Make) -> None:
    recent = Recent(clock, waiting=3)
    slow = recent.subscribe()
    waiting = asyncio.ensure_future(anext(slow))
    await asyncio.sleep(0)
    for number in range(10):
        recent.add(record("hit", request_id=str(number)))
    heard = [(await waiting), await anext(slow), await anext(slow)]
    assert [one.record.request_id for one in heard if one.record] == ["7", "8", "9"]
    await slow.aclose()


async def test_no_more_than_so_many_listen(clock: ManualClock, record: Make) -> None:
    recent = Recent(clock, listeners=1)
    first = recent.subscribe()
    waiting = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="at most 1"):
        await anext(recent.subscribe())
    recent.add(record("hit"))
    await waiting
    await first.aclose()


def test_the_past_is_bounded_and_newest_first(clock: ManualClock, record: Make) -> None:
    recent = Recent(clock, keep=5)
    for number in range(100):
        recent.add(record("hit", request_id=str(number)))
        recent.notice(Notice(kind=str(number)))
    assert [one.record.request_id for one in recent.records() if one.record] == ["99", "98", "97", "96", "95"]
    assert [one.notice.kind for one in recent.notices(2) if one.notice] == ["99", "98"]
    assert recent.records(1)[0].at == pytest.approx(clock.now())


def test_a_store_that_is_down_is_told_once_an_interval(clock: ManualClock, told: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("samewise.test")
    observer = Telemetry(clock=clock, log=Log(logger, Repeats(30, clock=clock.monotonic)))
    notice = Notice(kind="store-error", attributes={"tier": "store", "error": "refused"})
    for _ in range(100):
        observer.notice(notice)
    assert len(told) == 1
    clock.advance(31)
    observer.notice(notice)
    assert len(told) == 2
    assert told[1].__dict__["fields"]["repeated"] == 99


def test_an_odd_notice_raises_nothing(observer: Telemetry) -> None:
    observer.notice(Notice(kind="", attributes={"message": "m", "self": "s"}, detail={"what": object(), "name": 1}))
    observer.notice(Notice(kind="verification", attributes={"verdict": "divergent"}, detail={"message": "m"}))
    observer.notice(Notice(kind="store-error"))


@pytest.fixture
def lines() -> Iterator[Callable[[str], list[str]]]:
    stops: list[Any] = []

    def begin(form: str) -> list[str]:
        stream = io.StringIO()
        stop = start_logging(form, "info", stream)  # type: ignore[arg-type]
        stops.append(stop)
        logger = logging.getLogger("samewise.x")
        Log(logger).info("a\nb", trace_id="t" * 32, path="a b", nothing=None)
        logging.getLogger("samewise.y").error("bad %s", "thing")
        for _ in range(50):
            logging.getLogger("opentelemetry.exporter").warning("transient error, retrying")
        stops.pop()()
        return stream.getvalue().splitlines()

    yield begin
    for stop in stops:
        stop()


def test_json_lines_have_their_fields(lines: Callable[[str], list[str]]) -> None:
    first, second, third = [json.loads(line) for line in lines("json")]
    assert (first["message"], first["trace_id"], first["level"]) == ("a\nb", "t" * 32, "info")
    assert "nothing" not in first
    assert second["message"] == "bad thing"
    assert "telemetry can't be exported" in third["message"]


def test_text_is_one_line_whatever_is_in_it(lines: Callable[[str], list[str]]) -> None:
    first, second, third = lines("text")
    assert first.endswith(f'info samewise.x: a\\nb trace_id={"t" * 32} path="a b"')
    assert "error samewise.y: bad thing" in second
    assert "telemetry can't be exported" in third


def test_a_stuck_pipe_holds_up_nobody() -> None:
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    stop = start_logging("text", "info", stream)
    done = threading.Event()

    def talk() -> None:
        for _ in range(20_000):
            logging.getLogger("samewise").info("x" * 100)
        done.set()

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    try:
        assert done.wait(ENOUGH)
    finally:
        os.close(read)
        stop()
