"""What every store promises, whatever it is made of."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from samewise.core.answer import Answer, Event
from samewise.core.entry import Entry
from samewise.ports import ControlEvent
from samewise.store import wake
from samewise.store.factory import Stores
from tests.store.conftest import Notices, Opener
from tests.support.clock import ManualClock
from tests.support.entries import NOW, key_of, make_entry
from tests.support.patience import ENOUGH


async def test_what_was_put_is_there_at_once_and_after_a_flush(stores: Stores) -> None:
    entry = make_entry("a", tags=("x",), extra={"n": [1, 2]}, seed=7)
    assert await stores.store.put(entry)
    at_once = await stores.store.get(entry.key)
    await stores.store.flush()
    later = await stores.store.get(entry.key)
    assert at_once is not None
    assert later is not None
    assert at_once.entry == later.entry == entry


async def test_the_tier_that_had_it_is_told(stores: Stores, kind: str) -> None:
    await stores.store.put(make_entry("a"))
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.tier == ("memory" if "memory" in kind else "store")


async def test_a_key_that_nobody_put_has_nothing(stores: Stores) -> None:
    await stores.store.put(make_entry("a"))
    assert await stores.store.get(key_of("b")) is None


async def test_a_stream_comes_back_event_for_event(stores: Stores, again: Opener) -> None:
    events = tuple(Event(data=b'{"n":%d}' % n, name="x" if n % 2 else None) for n in range(200))
    entry = make_entry("a", answer=Answer(form="sse", events=events))
    await stores.store.put(entry)
    await stores.store.flush()
    found = await stores.store.get(entry.key)
    assert found is not None
    assert found.entry.answer.events == events


async def test_the_last_put_wins(stores: Stores) -> None:
    for n in range(20):
        await stores.store.put(make_entry("a", body=b"%d" % n))
    await stores.store.flush()
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.entry.answer.body == b"19"


async def test_an_entry_ends_with_its_time_to_live(stores: Stores, clock: ManualClock) -> None:
    await stores.store.put(make_entry("a", ttl=1000.0))
    await stores.store.flush()
    clock.advance(999.5)
    assert await stores.store.get(key_of("a")) is not None
    clock.advance(0.6)
    assert await stores.store.get(key_of("a")) is None


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("-inf")])
async def test_an_entry_without_time_to_live_is_not_kept(stores: Stores, ttl: float) -> None:
    assert not await stores.store.put(make_entry("a", ttl=ttl))
    assert await stores.store.get(key_of("a")) is None


@pytest.mark.parametrize("ttl", [0.4, 1.5, 1e12, 2.0**63, float("inf")])
async def test_any_other_time_to_live_is_fine(stores: Stores, notices: Notices, ttl: float) -> None:
    async with asyncio.timeout(ENOUGH):
        while await stores.store.get(key_of("a")) is None:  # a Redis counts the time that a busy machine takes
            assert await stores.store.put(make_entry("a", ttl=ttl))
            await stores.store.flush()
    assert notices.errors() == []


async def test_an_entry_that_is_over_already_is_not_kept(stores: Stores) -> None:
    assert not await stores.store.put(make_entry("a", created=NOW - 100, ttl=100.0))


async def test_exactly_at_the_limit_is_kept_and_one_byte_more_is_not(again: Opener) -> None:
    stores = await again(max_entry=5000)
    assert await stores.store.put(make_entry("a", body=b"x" * 5000))
    assert not await stores.store.put(make_entry("b", body=b"x" * 5001))
    assert not await stores.store.put(make_entry("c", request=b"x" * 5001))
    await stores.store.flush()
    assert await stores.store.get(key_of("a")) is not None
    assert await stores.store.get(key_of("b")) is None


async def test_discarded_is_gone_and_the_reply_says_whether_there_was_one(stores: Stores) -> None:
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    assert await stores.store.discard(key_of("a"), 1)
    assert await stores.store.get(key_of("a")) is None
    assert not await stores.store.discard(key_of("a"), 1)
    assert not await stores.store.discard(key_of("never"), 1)


async def test_discarded_while_it_waits_to_be_written_it_never_appears(stores: Stores) -> None:
    await stores.store.put(make_entry("a"))
    assert await stores.store.discard(key_of("a"), 1)
    await stores.store.flush()
    assert await stores.store.get(key_of("a")) is None


async def test_a_fill_that_began_before_the_fence_never_lands(stores: Stores) -> None:
    await stores.store.discard(key_of("a"), 5)
    assert not await stores.store.put(make_entry("a", began=4))
    assert await stores.store.put(make_entry("a", began=5, body=b"new"))
    assert not await stores.store.put(make_entry("a", began=4, body=b"old"))
    assert await stores.store.put(make_entry("b", began=4))
    await stores.store.flush()
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.entry.answer.body == b"new"


async def test_a_revision_takes_the_place_of_what_is_stored(stores: Stores) -> None:
    await stores.store.put(make_entry("a"))
    await stores.store.flush()
    assert await stores.store.revise(key_of("a"), lambda entry: msgspec.structs.replace(entry, verified=3))
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.entry == make_entry("a", verified=3)
    assert not await stores.store.revise(key_of("a"), lambda entry: entry)
    assert not await stores.store.revise(key_of("never"), lambda entry: None)
    assert await stores.store.revise(key_of("a"), lambda entry: None)
    assert await stores.store.get(key_of("a")) is None


async def test_what_was_put_after_it_was_looked_at_is_not_revised(stores: Stores) -> None:
    """A verdict about one recording never touches another."""
    old, new = make_entry("a", body=b"old"), make_entry("a", body=b"new", created=NOW + 1)
    await stores.store.put(old)
    await stores.store.put(new)
    assert not await stores.store.revise(key_of("a"), lambda entry: None if entry.same(old) else entry)
    await stores.store.flush()
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.entry.answer.body == b"new"


async def test_revisions_at_once_are_all_there(stores: Stores) -> None:
    await stores.store.put(make_entry("a"))
    await stores.store.flush()

    def one_more(entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, verified=entry.verified + 1)

    done = await asyncio.gather(*(stores.store.revise(key_of("a"), one_more) for _ in range(3)))
    assert all(done)
    found = await stores.store.get(key_of("a"))
    assert found is not None
    assert found.entry.verified == 3


async def test_a_revision_behind_is_one_in_front(again: Opener, kind: str) -> None:
    """Memory that lags behind what other proxies stored follows, and never the other way round."""
    if "+" not in kind:
        pytest.skip("one tier")
    first, second = await again(), await again()
    old, new = make_entry("a", body=b"old"), make_entry("a", body=b"new", created=NOW + 1)
    await first.store.put(old)
    await first.store.flush()
    assert (await second.store.get(key_of("a"))) is not None
    await first.store.put(new)
    await first.store.flush()
    await second.store.revise(key_of("a"), lambda entry: None if entry.same(old) else entry)
    for stores in (first, second):
        found = await stores.store.get(key_of("a"))
        assert found is not None
        assert found.entry.answer.body == b"new"


async def test_a_lower_fence_does_not_take_back_a_higher_one(stores: Stores) -> None:
    await stores.store.discard(key_of("a"), 5)
    await stores.store.discard(key_of("a"), 3)
    assert not await stores.store.put(make_entry("a", began=4))


async def test_a_fence_holds_for_another_proxy_too(again: Opener, kind: str) -> None:
    if kind == "memory":
        pytest.skip("a memory store is one proxy's own")
    first, second = await again(memory_bytes=0), await again(memory_bytes=0)
    await first.store.discard(key_of("a"), 5)
    await second.store.put(make_entry("a", began=4))
    await second.store.flush()
    assert await second.store.get(key_of("a")) is None
    await second.store.put(make_entry("a", began=5))
    await second.store.flush()
    assert await first.store.get(key_of("a")) is not None


async def test_what_one_proxy_stored_another_one_has(again: Opener, kind: str) -> None:
    if kind == "memory":
        pytest.skip("a memory store is one proxy's own")
    first, second = await again(), await again()
    await first.store.put(make_entry("a"))
    await first.store.flush()
    found = await second.store.get(key_of("a"))
    assert found is not None
    assert found.entry == make_entry("a")
    assert found.tier == "store"


async def test_other_namespaces_see_nothing(again: Opener, kind: str) -> None:
    if "redis" not in kind:
        pytest.skip("a namespace separates what shares a Redis")
    first, second = await again(namespace="staging"), await again(namespace="prod")
    await first.store.put(make_entry("a"))
    await first.store.flush()
    assert await second.store.get(key_of("a")) is None
    await second.store.discard(key_of("a"), 9)
    assert await first.store.get(key_of("a")) is not None


async def test_a_scan_sees_every_entry_once(stores: Stores) -> None:
    names = {f"n{n}" for n in range(300)}
    for name in names:
        await stores.store.put(make_entry(name))
    await stores.store.flush()
    await stores.store.discard(key_of("n7"), 1)
    seen = [entry.key async for entry in stores.store.scan()]
    assert sorted(seen) == sorted(key_of(name) for name in names - {"n7"})


async def test_a_thousand_puts_are_a_thousand_entries(stores: Stores, notices: Notices) -> None:
    for n in range(1000):
        assert await stores.store.put(make_entry(f"n{n}"))
    await stores.store.flush()
    found = await asyncio.gather(*(stores.store.get(key_of(f"n{n}")) for n in range(1000)))
    bodies = [one.entry.answer.body for one in found if one is not None]
    assert bodies == [make_entry(f"n{n}").answer.body for n in range(1000)]
    assert notices.errors() == []


async def test_callers_that_give_up_harm_nobody(stores: Stores) -> None:
    for n in range(100):
        await stores.store.put(make_entry(f"n{n}"))
    await stores.store.flush()
    tasks = [asyncio.create_task(stores.store.get(key_of(f"n{n}"))) for n in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for n in range(100):
        found = await stores.store.get(key_of(f"n{n}"))
        assert found is not None
        assert found.entry == make_entry(f"n{n}")


async def test_status_has_a_row_a_tier_and_all_is_well(stores: Stores, kind: str) -> None:
    rows = stores.store.status()
    assert [row.name for row in rows] == kind.split("+")
    assert all(row.available for row in rows)


async def test_sealed_where_a_secret_is_set(again: Opener, kind: str, notices: Notices) -> None:
    if kind == "memory":
        pytest.skip("nothing is written down")
    secret, other = await again(secrets=["s1"], memory_bytes=0), await again(secrets=["s2"], memory_bytes=0)
    rotated = await again(secrets=["s2", "s1"], memory_bytes=0)
    await secret.store.put(make_entry("a"))
    await secret.store.flush()
    assert await other.store.get(key_of("a")) is None
    assert "sealed" in notices.errors()
    assert await rotated.store.get(key_of("a")) is not None
    await secret.records.add("k", "1", b"text", keep=5)
    assert await other.records.get("k", "1") is None
    assert await other.records.latest("k", 5) == []
    assert await rotated.records.latest("k", 5) == [("1", b"text")]


# --- journal ------------------------------------------------------------------------------------------


def event(subject: str) -> ControlEvent:
    return ControlEvent(kind="invalidate", subject=subject, values={"scope": "key", "n": 1}, by="me", at=NOW)


async def test_events_are_numbered_from_one_and_come_back_in_order(stores: Stores) -> None:
    appended = [await stores.journal.append(event(str(n))) for n in range(5)]
    assert [one.number for one in appended] == [1, 2, 3, 4, 5]
    assert await stores.journal.since(0) == appended
    assert await stores.journal.since(3) == appended[3:]
    assert await stores.journal.since(5) == []
    assert await stores.journal.since(99) == []


async def test_concurrent_appends_have_one_order_for_all(again: Opener, kind: str) -> None:
    first = await again()
    second = first if kind == "memory" else await again()
    both = [journal.append(event(str(n))) for n in range(20) for journal in (first.journal, second.journal)]
    appended = await asyncio.gather(*both)
    assert sorted(one.number for one in appended) == list(range(1, 41))
    expected = sorted(appended, key=lambda one: one.number)
    assert await first.journal.since(0) == expected == await second.journal.since(0)


async def test_another_proxy_hears_of_an_event(again: Opener, kind: str) -> None:
    first = await again()
    second = first if kind == "memory" else await again()
    heard = asyncio.Event()

    async def listen() -> None:
        async for _ in second.journal.changes():
            if await second.journal.since(0):
                heard.set()

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await first.journal.append(event("a"))
    await asyncio.wait_for(heard.wait(), ENOUGH)
    listener.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listener


async def test_one_own_events_are_heard_without_a_look(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "POLL", 3600)
    monkeypatch.setattr(wake, "TOLD", 3600)
    changes = stores.journal.changes()
    await anext(changes)
    await stores.journal.append(event("a"))
    await asyncio.wait_for(anext(changes), ENOUGH)


async def test_closing_a_journal_ends_those_who_listen(stores: Stores) -> None:
    async def listen() -> None:
        async for _ in stores.journal.changes():
            pass

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    await stores.journal.close()
    await asyncio.wait_for(listener, ENOUGH)


# --- records ------------------------------------------------------------------------------------------


async def test_records_are_bounded_newest_first_and_by_kind(stores: Stores) -> None:
    for n in range(7):
        await stores.records.add("divergence", str(n), b"v%d" % n, keep=5)
    await stores.records.add("receipt", "0", b"other", keep=5)
    assert await stores.records.latest("divergence", 3) == [("6", b"v6"), ("5", b"v5"), ("4", b"v4")]
    assert len(await stores.records.latest("divergence", 100)) == 5
    assert await stores.records.latest("divergence", 0) == []
    assert await stores.records.latest("none", 5) == []
    assert await stores.records.get("divergence", "1") is None
    assert await stores.records.get("divergence", "2") == b"v2"
    assert await stores.records.get("receipt", "0") == b"other"


async def test_a_record_added_again_is_one_record_and_the_newest(stores: Stores) -> None:
    for identity, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        await stores.records.add("k", identity, value, keep=5)
    assert await stores.records.latest("k", 5) == [("a", b"3"), ("b", b"2")]
