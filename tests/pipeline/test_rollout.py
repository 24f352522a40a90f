"""Which environment is active, as a function of the upstreams and of what operators decided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core.fingerprint import Environment, from_manifest
from samewise.pipeline.rollout import ACTIVATE, TRIAL, Policy, Rollout, activation
from samewise.ports import ControlEvent, Member


def environment(name: str) -> Environment:
    return from_manifest({"id": name, "engine": "mock", "weights": name})


class Fleet:
    """Upstreams by letter: `A` healthy with environment A, `a` the same but down."""

    def __init__(self, policy: Policy = "auto", letters: str = "", models: tuple[str, ...] = ("m",)) -> None:
        self.letters = letters
        self.models = models
        self.rollout = Rollout(self.members, policy)

    def members(self) -> list[Member]:
        return [
            Member(url=str(at), healthy=letter.isupper(), environment=environment(letter.upper()), models=self.models)
            for at, letter in enumerate(self.letters)
        ]

    def become(self, letters: str) -> str:
        self.letters = letters
        self.rollout.changed()
        return self.active()

    def active(self, model: str = "m") -> str:
        found = self.rollout.active(model)
        return found.id if found else ""

    def activate(self, name: str, model: str = "") -> None:
        standing = self.rollout.standing(model or "m")
        self.rollout.apply(event(name, **activation(environment(name), model, standing)))


def event(subject: str, kind: str = ACTIVATE, *, by: str = "op", at: float = 0.0, **values: Any) -> ControlEvent:
    return ControlEvent(kind=kind, subject=subject, values=values, by=by, at=at)


def test_auto_follows_most_healthy_upstreams_and_rests_while_they_are_even() -> None:
    fleet = Fleet(letters="AAA")
    steps = {"AAA": "A", "BAA": "A", "bAA": "A", "BaA": "A", "BBA": "B", "BBB": "B", "BbA": "B", "bbb": "B", "Abb": "A"}
    assert {letters: fleet.become(letters) for letters in steps} == steps


@pytest.mark.parametrize(
    ("later", "active"), [("AAB", "B"), ("ABB", "B"), ("BBB", "B"), ("AAb", "A"), ("CCB", "C"), ("CAB", "B")]
)
def test_under_auto_an_activation_ends_with_a_third_majority_or_with_its_last_healthy_upstream(
    later: str, active: str
) -> None:
    fleet = Fleet(letters="AAB")
    fleet.activate("B")
    assert fleet.active() == "B"
    assert fleet.become(later) == active


def test_manual_stays_with_what_was_activated_even_where_nobody_has_it() -> None:
    fleet = Fleet("manual", "AAA")
    assert [fleet.become(letters) for letters in ("AAA", "BBA", "BBB", "bbb")] == ["A"] * 4
    fleet.activate("B")
    assert [fleet.become(letters) for letters in ("BBB", "AAA", "CCC", "")] == ["B"] * 4


def test_an_activation_brings_what_it_takes_to_make_keys_of_it() -> None:
    one = Fleet("manual", "BB")
    one.activate("B")
    later = Fleet("manual", "CC")
    later.rollout.apply(event("B", model="", majority="B", manifest=environment("B").manifest, origin="contract"))
    found = later.rollout.active("m")
    assert found == environment("B")


def test_verified_has_nothing_active_until_something_is_activated() -> None:
    fleet = Fleet("verified", "AAA")
    assert fleet.active() == ""
    fleet.activate("A")
    assert [fleet.become(letters) for letters in ("AAA", "BBB")] == ["A", "A"]


def test_an_activation_for_all_replaces_those_for_single_models() -> None:
    fleet = Fleet("manual", "AB", models=("m", "n"))
    fleet.activate("B", "m")
    assert (fleet.active("m"), fleet.active("n")) == ("B", "A")
    fleet.activate("A")
    assert (fleet.active("m"), fleet.active("n")) == ("A", "A")


def test_waiting_is_what_most_others_have() -> None:
    fleet = Fleet(letters="AAABBC")
    found = fleet.rollout.waiting("m")
    assert found is not None
    assert found.id == "B"
    assert Fleet(letters="AAb").rollout.waiting("m") is None


def test_names_that_no_upstream_lists_share_one_place() -> None:
    fleet = Fleet(letters="A")
    for number in range(1000):
        assert fleet.active(f"made-up-{number}") == "A"
    assert len(fleet.rollout._active) <= 2


def test_of_two_proxies_that_begin_a_trial_the_first_has_it() -> None:
    rollout = Fleet("verified", "A").rollout
    rollout.apply(event("A", TRIAL, by="one", at=1.0, model="m", state="begun"))
    rollout.apply(event("A", TRIAL, by="two", at=2.0, model="m", state="begun"))
    found = rollout.trial("A", "m")
    assert found is not None
    assert (found.state, found.by) == ("begun", "one")
    rollout.apply(event("A", TRIAL, by="two", at=1000.0, model="m", state="begun"))
    assert rollout.trial("A", "m") != found
    rollout.apply(event("A", TRIAL, by="two", at=1001.0, model="m", state="passed"))
    again = rollout.trial("A", "m")
    assert again is not None
    assert again.state == "passed"


@given(steps=st.lists(st.text("ABab", min_size=1, max_size=5), min_size=1, max_size=12))
def test_under_auto_what_is_active_is_healthy_somewhere_whenever_anything_is(steps: list[str]) -> None:
    fleet = Fleet(letters=steps[0])
    for letters in steps:
        active = fleet.become(letters)
        if any(letter.isupper() for letter in letters):
            assert active in letters
