"""Who becomes active without an operator: the first one under `manual`, who passed under `verified`."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from samewise.core.acceptance import Report, Row
from samewise.core.fingerprint import Environment, from_manifest
from samewise.pipeline.control import Control
from samewise.pipeline.promotion import AGAIN, Promoter
from samewise.pipeline.rollout import CLAIM, Policy, Rollout
from samewise.ports import ControlEvent, Member
from tests.support.clock import ManualClock


class Steering:
    """What a Promoter needs of the control, on a journal that several may share."""

    def __init__(self, policy: Policy, letters: list[str], journal: list[ControlEvent], peers: list[Steering]) -> None:
        self.rollout = Rollout(lambda: [member(letter) for letter in letters], policy)
        self.ready = True
        self._journal = journal
        self._peers = peers
        peers.append(self)

    async def record(self, event: ControlEvent) -> ControlEvent:
        event = msgspec.structs.replace(event, number=len(self._journal) + 1)
        self._journal.append(event)
        for peer in self._peers:
            peer.rollout.apply(event)
        return event


def member(letter: str) -> Member:
    environment = from_manifest({"id": letter, "engine": "mock"})
    return Member(url=letter, healthy=True, environment=environment, models=("m",))


def report(agreed: bool, environment: str = "A", failures: int = 0) -> Report:
    row = Row(
        prompt="p",
        environment=environment,
        answers=2,
        hashes={},
        disagreements=0,
        failures=failures,
        closest=None,
        members=(),
    )
    return Report(
        agreed=agreed,
        model="m",
        answers=2,
        failures=failures,
        disagreed=0 if agreed or failures else 1,
        rows=(row,),
        disagreements=(),
        errors=(),
    )


class World:
    """Promoters of proxies on one journal; `results` are what their trials come to, in order."""

    def __init__(self, policy: Policy, letters: str = "A", proxies: int = 1) -> None:
        self.letters = list(letters)
        self.journal: list[ControlEvent] = []
        self.clock = ManualClock()
        self.results: list[Any] = []
        self.tried: list[str] = []
        self.peers: list[Steering] = []
        self.promoters = [
            Promoter(
                control=cast(Control, Steering(policy, self.letters, self.journal, self.peers)),
                clock=self.clock,
                policy=policy,
                attempt=self.attempt,
                who=f"proxy-{number}",
            )
            for number in range(proxies)
        ]

    async def attempt(self, environment: Environment, model: str) -> Report:
        self.tried.append(environment.id)
        await asyncio.sleep(0)
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return cast(Report, result)

    async def step(self) -> str:
        for peer in self.peers:
            peer.rollout.changed()
        await asyncio.gather(*(promoter.step() for promoter in self.promoters))
        found = self.peers[0].rollout.active("m")
        return found.id if found else ""


async def test_the_first_environment_under_manual_is_activated_once() -> None:
    world = World("manual", "AAB")
    assert [await world.step(), await world.step()] == ["A", "A"]
    world.letters[:] = "BBB"
    assert await world.step() == "A"
    assert [event.subject for event in world.journal] == ["A"]


async def test_before_the_journal_is_read_nothing_is_decided() -> None:
    world = World("manual")
    world.peers[0].ready = False
    await world.step()
    assert world.journal == []


async def test_one_that_passed_is_active_and_needs_no_second_trial_to_come_back() -> None:
    world = World("verified")
    world.results = [report(True), report(True, "B")]
    assert await world.step() == "A"
    world.letters[:] = "BBA"
    assert await world.step() == "B"
    world.letters[:] = "AAB"
    assert await world.step() == "A"
    assert world.tried == ["A", "B"]


async def test_one_that_failed_stays_out_and_is_not_tried_again() -> None:
    world = World("verified")
    world.results = [report(True), report(False, "B")]
    await world.step()
    world.letters[:] = "BB"
    assert [await world.step() for _ in range(3)] == ["A"] * 3
    assert world.tried == ["A", "B"]


@pytest.mark.parametrize(
    "unclear", [RuntimeError("away"), report(False, failures=1), report(True, "other")], ids=["error", "500", "swapped"]
)
async def test_a_trial_without_a_result_is_repeated_after_a_while(unclear: Any) -> None:
    world = World("verified")
    world.results = [unclear, report(True)]
    assert [await world.step(), await world.step()] == ["", ""]
    assert world.tried == ["A"]
    world.clock.advance(AGAIN + 1)
    assert await world.step() == "A"


async def test_of_several_proxies_one_tries() -> None:
    world = World("verified", proxies=3)
    world.results = [report(True)]
    assert await world.step() == "A"
    assert world.tried == ["A"]
    assert all(peer.rollout.active("m") is not None for peer in world.peers)


async def test_a_trial_whose_proxy_died_is_another_ones_after_a_while() -> None:
    world = World("verified", proxies=2)
    dead = ControlEvent(
        kind="environment-trial",
        subject="A",
        values={"model": "m", "state": "begun"},
        by="dead",
        at=world.clock.now(),
    )
    await world.peers[0].record(dead)
    world.results = [report(True)]
    assert await world.step() == ""
    world.clock.advance(CLAIM + 1)
    assert await world.step() == "A"
    assert world.tried == ["A"]


async def test_a_stop_gives_the_trial_back() -> None:
    world = World("verified")
    world.results = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await world.step()
    trial = world.peers[0].rollout.trial("A", "m")
    assert trial is not None
    assert trial.state == "inconclusive"


async def test_an_operators_choice_against_the_majority_is_left_alone() -> None:
    world = World("verified", "AAB")
    world.results = [report(True)]
    await world.step()
    chosen = {"model": "", "majority": "A", "manifest": {"id": "B"}, "origin": "contract"}
    await world.peers[0].record(ControlEvent(kind="environment-activate", subject="B", values=chosen, by="op"))
    assert [await world.step(), await world.step()] == ["B", "B"]
