"""Sampling profiles as the fold of their events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.pipeline import profiles
from samewise.pipeline.profiles import Profiles, UnknownProfile, bucket
from samewise.ports import ControlEvent


def happened(kind: str, name: str = "default", **values: Any) -> ControlEvent:
    return ControlEvent(kind=kind, subject=name, values=values, by="op", at=1.0)


def folded(*events: ControlEvent, configured: dict[str, str] | None = None) -> Profiles:
    made = Profiles(configured)
    for event in events:
        made.apply(event)
    return made


def set_to(temperature: float, name: str = "default") -> ControlEvent:
    return happened(profiles.SET, name, values={"temperature": temperature})


def test_a_new_version_is_active_at_once_and_old_ones_stay() -> None:
    made = folded(set_to(0.7), set_to(1.2))
    assert made.snapshot("", "m", b"").label() == "default@2"
    assert [version.values["temperature"] for version in made.get("default").versions] == [0.7, 1.2]


def test_a_rollback_makes_the_version_before_active_again_and_again() -> None:
    made = folded(set_to(0.1), set_to(0.2), set_to(0.3), happened(profiles.ROLLBACK))
    assert made.snapshot("", "m", b"").values == {"temperature": 0.2}
    made.apply(happened(profiles.ROLLBACK))
    assert made.snapshot("", "m", b"").label() == "default@1"
    made.apply(happened(profiles.ROLLBACK))
    assert made.snapshot("", "m", b"").label() == "default@1"


def test_settings_that_several_proxies_tell_at_once_are_one_version_and_end_no_update() -> None:
    def settings(temperature: float) -> ControlEvent:
        return msgspec.structs.replace(set_to(temperature), by=profiles.CONFIG)

    made = folded(settings(0.1), set_to(0.2), settings(0.1))
    assert made.snapshot("", "m", b"").label() == "default@2"
    made.apply(settings(0.3))
    made.apply(settings(0.1))
    assert [version.values["temperature"] for version in made.get("default").versions] == [0.1, 0.2, 0.3, 0.1]


@given(percent=st.floats(min_value=0.01, max_value=100), prompts=st.lists(st.binary(max_size=20), max_size=30))
def test_the_side_of_a_canary_is_a_function_of_the_request_alone(percent: float, prompts: list[bytes]) -> None:
    canary = happened(profiles.CANARY, values={"temperature": 1.2}, percent=percent)
    one, other = folded(set_to(0.7), canary), folded(set_to(0.7), canary)
    for prompt in prompts:
        side = one.snapshot("t", "m", prompt)
        assert side == one.snapshot("t", "m", prompt) == other.snapshot("t", "m", prompt)
        assert (side.version == 2) == (bucket("t", "m", prompt) < percent * 100)


@given(prompt=st.binary(max_size=20), low=st.floats(min_value=0.01, max_value=50))
def test_a_request_on_the_canary_side_stays_there_when_the_share_grows(prompt: bytes, low: float) -> None:
    small = folded(set_to(0.7), happened(profiles.CANARY, values={"temperature": 1.2}, percent=low))
    large = folded(set_to(0.7), happened(profiles.CANARY, values={"temperature": 1.2}, percent=low * 2))
    if small.snapshot("t", "m", prompt).version == 2:
        assert large.snapshot("t", "m", prompt).version == 2


def test_a_canary_takes_about_its_share() -> None:
    made = folded(set_to(0.7), happened(profiles.CANARY, values={"temperature": 1.2}, percent=10))
    sides = [made.snapshot("t", "m", str(number).encode()).version for number in range(5000)]
    assert 400 < sides.count(2) < 600


def test_a_promoted_canary_is_active_for_everyone_and_a_rollback_ends_one() -> None:
    canary = happened(profiles.CANARY, values={"temperature": 1.2}, percent=10)
    promoted = folded(set_to(0.7), canary, happened(profiles.PROMOTE))
    assert {promoted.snapshot("t", "m", str(n).encode()).version for n in range(100)} == {2}
    ended = folded(set_to(0.7), canary, happened(profiles.ROLLBACK))
    assert {ended.snapshot("t", "m", str(n).encode()).version for n in range(100)} == {1}


def test_a_model_has_the_first_profile_whose_pattern_fits_and_the_default_last() -> None:
    made = folded(
        set_to(0.1), set_to(0.2, "small"), set_to(0.3, "all"), configured={"default": "*", "small": "s-*", "all": "*-x"}
    )
    assert made.snapshot("", "s-x", b"").profile == "small"
    assert made.snapshot("", "l-x", b"").profile == "all"
    assert made.snapshot("", "other", b"").profile == "default"


def test_a_version_knows_its_content_whatever_its_spelling() -> None:
    made = folded(
        happened(profiles.SET, values={"temperature": 1, "top_p": 0.5}),
        happened(profiles.SET, values={"top_p": 0.5, "temperature": 1.0}),
    )
    first, second = made.get("default").versions
    assert first.hash == second.hash


def test_an_unknown_profile_is_said_to_be_unknown() -> None:
    with pytest.raises(UnknownProfile):
        folded().get("nobody")
