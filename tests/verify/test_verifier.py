"""The verifier: what it takes, what it does about a verdict, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from samewise.core.answer import Answer
from samewise.pipeline.verify.withheld import EVICT, QUARANTINE, REPLACE
from samewise.ports import ControlEvent
from tests.support.entries import key_of
from tests.verify.house import House, Reply, chat, house, recorded

SAID, OTHER = "the cat sat", "the dog sat"


@asynccontextmanager
async def running(it: House) -> AsyncIterator[House]:
    await it.control.start({})
    it.verifier.start()
    yield it
    await it.verifier.close()
    await it.control.close()


async def test_agreement_is_counted_on_the_entry() -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        entry = recorded(SAID)
        await it.store.put(entry)
        for _ in range(3):
            await it.verify(entry)
        stored = await it.stored(entry.key)
        assert stored is not None
        assert stored.verified == 3
        assert msgspec.structs.replace(stored, verified=0) == entry
        assert sum(notice.value for notice in it.observer.kinds("tokens")) == 3 * 4
        assert {notice.attributes["kind"] for notice in it.observer.kinds("tokens")} == {"verified"}


@pytest.mark.parametrize("action", ["flag", "evict", "replace", "quarantine"])
async def test_what_follows_from_a_divergence(action: Any) -> None:
    async with running(house(lambda body, member: chat(OTHER), action=action)) as it:
        entry = recorded(SAID)
        await it.store.put(entry)
        it.clock.advance(1)
        await it.verify(entry)
        assert it.observer.verdicts() == {"divergent": 1}
        (record,) = await it.book.latest(10)
        assert (record.cached.text, record.recomputed.text) == (SAID, OTHER)
        assert (record.position, record.unit, record.action) == (4, "character", action)
        stored = await it.stored(entry.key)
        match action:
            case "evict":
                assert stored is None
            case "replace":
                assert stored is not None
                told = json.loads(stored.answer.body)
                assert told["choices"][0]["message"]["content"] == OTHER
                assert stored.created == entry.created + 1
            case _:
                assert stored == entry
        assert it.control.withheld.holds(entry) is (action == "quarantine")


@pytest.mark.parametrize("action", ["evict", "replace", "quarantine"])
async def test_a_verdict_about_an_old_entry_never_touches_a_newer_one(action: Any) -> None:
    """The entry is replaced while its recomputation runs."""
    old = recorded(SAID)
    new = recorded("newer", created=old.created + 1)

    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        it.store.keep(new)
        return chat(OTHER)

    async with running(house(says, action=action)) as it:
        it.clock.advance(1)
        await it.store.put(old)
        await it.verify(old)
        assert it.observer.verdicts() == {"divergent": 1}
        assert await it.stored(old.key) == new
        assert not it.control.withheld.holds(new)


@pytest.mark.parametrize("kind", [EVICT, REPLACE, QUARANTINE])
async def test_what_another_proxy_decided_holds_here_for_that_recording_alone(kind: str) -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        old = recorded(SAID)
        new = recorded("newer", created=old.created + 1)
        it.clock.advance(1)
        for entry in (new, old):
            await it.store.put(entry)
            values = {"created": old.created, "began": old.began}
            await it.control.record(ControlEvent(kind=kind, subject=old.key, values=values))
            touched = await it.stored(old.key) is None or it.control.withheld.holds(entry)
            assert touched is (entry is old)


async def test_a_quarantine_ends_after_so_many_agreements_in_a_row() -> None:
    now = OTHER
    async with running(house(lambda body, member: chat(now), action="quarantine", release=3)) as it:
        entry = recorded(SAID)
        await it.store.put(entry)
        await it.verify(entry)
        for said, held in ((SAID, True), (SAID, True), (OTHER, True), (SAID, True), (SAID, True), (SAID, False)):
            now = said
            it.verifier.on_held(entry, None)
            await it.settled()
            assert it.control.withheld.holds(entry) is held


async def test_near_ties_and_flaky_ones_cost_an_entry_nothing() -> None:
    answers = iter([chat(OTHER), chat(SAID)])
    async with running(house(lambda body, member: next(answers), action="evict")) as it:
        entry = recorded(SAID)
        await it.store.put(entry)
        await it.verify(entry)
        assert it.observer.verdicts() == {"flaky": 1}
        assert it.observer.kinds("verification")[0].attributes["verdict"] == "inconclusive"
        assert await it.stored(entry.key) == entry
        assert [each.verdict for each in await it.book.latest(5)] == ["flaky"]


async def test_an_entry_that_is_gone_is_not_asked_for() -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        await it.verify(recorded(SAID))
        assert it.observer.verdicts() == {"inconclusive": 1}
        assert it.engine.asked == []


async def test_an_answer_is_kept_only_after_enough_agreed() -> None:
    async with running(house(lambda body, member: chat(SAID), agreements=3)) as it:
        it.verifier.on_candidate(recorded(SAID, "good"), None)
        it.verifier.on_candidate(recorded(OTHER, "bad"), None)
        await it.settled()
        kept = await it.stored(key_of("good"))
        assert kept is not None
        assert kept.verified == 3
        assert await it.stored(key_of("bad")) is None
        assert it.observer.verdicts() == {"match": 3, "divergent": 1}


async def test_the_queue_is_bounded_and_what_finds_no_room_is_counted() -> None:
    it = house(lambda body, member: chat(SAID), queue=5)
    for number in range(8):
        it.verifier._offer("hit", recorded(SAID, str(number)), None)
    it.verifier._offer("hit", recorded(SAID, "0"), None)
    assert len(it.verifier) == 5
    assert len(it.observer.kinds("verify-dropped")) == 3


@pytest.mark.parametrize("reply", [Reply(status=429), Reply(status=503), Reply(fails="cut"), Reply(fails="timeout")])
async def test_an_upstream_that_gives_no_answer_is_left_alone_for_longer_and_longer(reply: Reply) -> None:
    async with running(house(lambda body, member: reply)) as it:
        entries = [recorded(SAID, str(number)) for number in range(50)]
        for entry in entries:
            await it.store.put(entry)
            it.verifier._offer("hit", entry, None)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(it.engine.asked) == 1
        assert len(it.verifier) == 49
        assert it.observer.verdicts() == {"inconclusive": 1}
        assert it.verifier._room.closed_for(entries[0].environment) == pytest.approx(1.0)


async def test_a_full_upstream_is_not_asked() -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        it.engine.running = 64
        entry = recorded(SAID)
        await it.store.put(entry)
        it.verifier._offer("hit", entry, None)
        for _ in range(100):
            await asyncio.sleep(0)
        assert it.engine.asked == []
        assert len(it.verifier) == 1


async def test_who_is_refused_by_one_environment_does_not_hold_up_another() -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        it.verifier._room.failed("f" * 32, _busy())
        shut, entry = recorded(SAID, "shut", environment="f" * 32), recorded(SAID, "open")
        for each in (shut, entry):
            await it.store.put(each)
            it.verifier._offer("hit", each, None)
        for _ in range(200):
            await asyncio.sleep(0)
        stored = await it.stored(entry.key)
        assert stored is not None
        assert stored.verified == 1
        assert len(it.verifier) == 1


async def test_the_wrong_one_of_three_is_named_within_200_and_drained_and_the_rest_recovers() -> None:
    urls = [f"http://{name}/v1" for name in ("one", "two", "three")]

    def says(body: dict[str, Any], member: str) -> dict[str, Any]:
        return chat(SAID if member != urls[1] else OTHER)

    async with running(house(says, *urls, on_floor="drain")) as it:
        for number in range(200):
            given = urls[number % 3]
            entry = recorded(OTHER if given == urls[1] else SAID, str(number), instance=given)
            await it.store.put(entry)
            await it.verify(entry)
            if it.engine.drained:
                break
        assert it.engine.drained == [urls[1]]
        (shown,) = [evidence for evidence in it.told if evidence["state"] == "degraded"]
        assert shown["divergences"]
        assert {each["instance"] for each in shown["divergences"]} == {urls[1]}
        told = it.episodes.describe()[entry.environment]
        assert told["state"] == "degraded"
        for number in range(60):
            await it.store.put(entry := recorded(SAID, f"later {number}", instance=urls[0]))
            await it.verify(entry)
        assert it.episodes.describe().get(entry.environment, {"state": "ok"})["state"] != "degraded"
        assert [evidence["state"] for evidence in it.told] == ["degraded", "recovered"]


async def test_an_episode_is_told_once_and_pauses_its_environment_alone() -> None:
    now = OTHER
    async with running(house(lambda body, member: chat(now), on_floor="pause")) as it:
        entries = [recorded(SAID, str(number)) for number in range(60)]
        for entry in entries:
            await it.store.put(entry)
        await it.verify(*entries[:30])
        assert [evidence["state"] for evidence in it.told] == ["degraded"]
        assert it.control.withheld.pauses(entries[0].environment)
        assert not it.control.withheld.pauses("another")
        assert it.told[0]["high"] < it.told[0]["floor"]
        now = SAID
        await it.verify(*entries[:49])
        assert it.control.withheld.pauses(entries[0].environment)
        await it.verify(entries[50])
        assert not it.control.withheld.pauses(entries[0].environment)
        assert [evidence["state"] for evidence in it.told] == ["degraded", "recovered"]
        assert it.episodes.describe() == {}


async def test_a_caller_who_asked_past_the_cache_gives_the_first_recomputation() -> None:
    loop = asyncio.get_running_loop()
    async with running(house(lambda body, member: chat(OTHER))) as it:
        old, same = recorded(SAID), recorded(SAID, created=recorded(SAID).created + 1, verified=0)
        it.clock.advance(2)
        await it.store.put(same)
        with _at_once(loop):
            it.verifier.on_refresh(old, same, None)
            await it.settled()
            assert it.engine.asked == []
            stored = await it.stored(old.key)
            assert stored is not None
            assert stored.verified == 1
            differs = recorded(OTHER, created=old.created + 1)
            await it.store.put(differs)
            it.verifier.on_refresh(same, differs, None)
            await it.settled()
        assert it.observer.verdicts() == {"match": 1, "divergent": 1}
        assert await it.stored(old.key) == differs


async def test_with_the_rate_at_0_no_call_is_made_for_who_asked_past_the_cache() -> None:
    async with running(house(lambda body, member: chat(OTHER), rate=0.0)) as it:
        old, new = recorded(SAID), recorded(OTHER, created=recorded(SAID).created + 1)
        with _at_once(asyncio.get_running_loop()):
            it.verifier.on_refresh(old, new, None)
            await it.settled()
        assert it.observer.verdicts() == {"inconclusive": 1}
        assert it.engine.asked == []


async def test_outputs_are_kept_as_digests_where_that_is_wanted() -> None:
    async with running(house(lambda body, member: chat(OTHER), full=False)) as it:
        entry = recorded(SAID)
        await it.store.put(entry)
        await it.verify(entry)
        (record,) = await it.book.latest(5)
        assert SAID.encode() not in record.encoded()
        assert OTHER.encode() not in record.encoded()
        assert record.cached.digest != record.recomputed.digest


async def test_a_broken_entry_ends_in_nothing_but_a_log_line() -> None:
    async with running(house(lambda body, member: chat(SAID))) as it:
        broken = msgspec.structs.replace(recorded(SAID, "broken"), request=b"[1", answer=Answer(form="json", body=b"?"))
        good = recorded(SAID)
        for entry in (broken, good):
            await it.store.put(entry)
        await it.verify(broken)
        await it.verify(good)
        stored = await it.stored(good.key)
        assert stored is not None
        assert stored.verified == 1


def _busy() -> Any:
    from samewise.pipeline.verify.recompute import Failed

    return Failed("busy", "scripted")


class _at_once:  # noqa: N801
    """Timers of the verifier come due at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._patch = pytest.MonkeyPatch()
        self._loop = loop

    def __enter__(self) -> None:
        def at_once(delay: float, callback: Callable[..., Any], *args: Any) -> None:
            callback(*args)

        from samewise.pipeline.verify import verifier

        assert verifier.LATER > 0
        self._patch.setattr(self._loop, "call_later", at_once)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
