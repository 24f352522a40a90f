"""The fold of the journal: whatever stands in it, what can be applied is, and the rest is told of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from samewise.core.fingerprint import from_manifest
from samewise.pipeline import adopted, fleet, invalidate, keyring, profiles, rollout
from samewise.pipeline.verify import withheld
from samewise.ports import UNREADABLE, ControlEvent, Notice
from samewise.store.event_codec import decode, encode
from tests.verify.house import House, house

KINDS = sorted(
    {invalidate.KIND, keyring.REVOKE, adopted.KIND, UNREADABLE, "of-a-newer-release"}
    | profiles.KINDS
    | rollout.KINDS
    | fleet.KINDS
    | withheld.KINDS
)
NAMES = (
    "value", "values", "tenant", "match", "percent", "model", "majority", "manifest", "origin", "state", "summary",
    "created", "began", "paused", "environments", "epochs", "evidence",
)  # fmt: skip
URLS = ("http://h:99999/v1", "http://u:p@h/v1", "http:///v1", "http://127.0.0.1:9/v1")
SUBJECTS = (*invalidate.SCOPES, *URLS, "", "default", "x", "\n", "e" * 64)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.binary(max_size=4)
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
)
EVENTS = st.builds(
    ControlEvent,
    kind=st.sampled_from(KINDS),
    subject=st.sampled_from(SUBJECTS) | st.text(st.characters(codec="utf-8"), max_size=8),
    values=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4),
    by=st.just("nobody"),
    at=st.floats(0, 2e9),
)


def skipped(at: House) -> list[Notice]:
    return [notice for notice in at.observer.notices if notice.kind == "control-skipped"]


def good() -> list[ControlEvent]:
    environment = from_manifest({"id": "e", "engine": "mock"})
    return [
        ControlEvent(kind=profiles.SET, subject="last", values={"values": {"temperature": 0.5}, "match": "last"}),
        ControlEvent(kind=keyring.REVOKE, subject="a" * 64),
        ControlEvent(kind=rollout.ACTIVATE, subject="e", values={"model": "last", "manifest": environment.manifest}),
        ControlEvent(kind=invalidate.KIND, subject="model", values={"value": "last"}),
    ]


async def folded(*events: ControlEvent) -> House:
    """A control that runs and then hears of these events, as they come out of a journal."""
    at = house(lambda body, url: {})
    await at.control.catch_up()
    for number, event in enumerate(events, 1):
        await at.control._journal.append(decode(encode(event), number))
    await at.control.catch_up()
    return at


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=200)
@given(st.lists(EVENTS, max_size=6))
@example([ControlEvent(kind=fleet.ADD, subject="http://127.0.0.1:18600/v1?x=1")])
@example([ControlEvent(kind=invalidate.KIND, subject="tag", values={"values": 5})])
@example([ControlEvent(kind=profiles.CANARY, subject="default", values={"values": {}, "percent": "half"})])
async def test_no_event_keeps_those_after_it_from_being_taken_in(events: list[ControlEvent]) -> None:
    at = await folded(*events, *good())
    control = at.control
    assert control.number == len(events) + 4 and control.ready
    counted = [notice for notice in at.observer.notices if notice.kind in {"control", "control-skipped"}]
    assert len(counted) == len(events) + 4
    assert not [notice for notice in skipped(at) if notice.detail["number"] > len(events)]
    control.context("t", "last", lambda: b"p")
    last = control.profiles.get("last")
    assert last.values(last.active).values == {"temperature": 0.5}
    assert control.invalidations.count("model", "last") >= 1
    chosen = control.rollout.chosen("last")
    assert chosen is not None and chosen.id == "e"
    for name in control.profiles.names():
        msgspec.json.encode(control.profiles.get(name))


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    (fleet.ADD, "http://u:p@h/v1", {}),
    (fleet.ADD, "http://h:99999/v1", {}),
    (fleet.REMOVE, "http:///v1", {}),
    (keyring.REVOKE, "not a digest", {}),
    (invalidate.KIND, "everything", {}),
    (invalidate.KIND, "tag", {"values": "ab"}),
    (invalidate.KIND, "tag", {"value": "a", "tenant": 3}),
    (invalidate.KIND, "key", {"values": ["a", 3]}),
    (profiles.SET, "x", {"values": 5}),
    (profiles.SET, "x", {"values": {"temperature": float("nan")}}),
    (profiles.SET, "a\nb", {"values": {}}),
    (profiles.SET, "x", {"values": {}, "match": 3}),
    (profiles.CANARY, "x", {"values": {}}),
    (profiles.CANARY, "x", {"values": {}, "percent": float("nan")}),
    (profiles.CANARY, "x", {"values": {}, "percent": 101}),
    (profiles.PROMOTE, "nobody", {}),
    (profiles.ROLLBACK, "nobody", {}),
    (rollout.ACTIVATE, "e", {"model": 3}),
    (rollout.ACTIVATE, "e", {"manifest": {"id": 3}}),
    (rollout.ACTIVATE, "e", {"manifest": {"id": "another"}}),
    (rollout.TRIAL, "e", {"state": "sleeping"}),
    (adopted.KIND, "1", {"environments": {"m": 3}}),
    (adopted.KIND, "1", {"epochs": [["all", "", "many"]]}),
    (withheld.QUARANTINE, "k", {}),
    (withheld.EVICT, "k", {"created": "then", "began": 1}),
    (UNREADABLE, "", {}),
]


@pytest.mark.parametrize(("kind", "subject", "values"), WRONG)
async def test_what_cannot_be_applied_changes_nothing_and_is_counted(
    kind: str, subject: str, values: dict[str, Any]
) -> None:
    at = await folded(ControlEvent(kind=kind, subject=subject, values=values, by="nobody"))
    plain = await folded()
    (told,) = skipped(at)
    assert (told.detail["of"], told.detail["number"]) == (kind, 1)
    assert "u:p@" not in str(told)
    assert at.control.profiles.names() == plain.control.profiles.names()
    assert at.control.rollout.chosen("m") is None
    assert at.control.adopted.all() == {} and at.control.invalidations.epoch_counts() == ()
    assert len(at.control.withheld) == 0 and not at.control.keyring.knows(subject)
    assert [member.url for member in at.engine.members()] == [member.url for member in plain.engine.members()]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", encode(good()[0])[:-3], b"\x91" * 5000])
def test_bytes_that_are_no_event_hold_their_number(data: bytes) -> None:
    event = decode(data, 7)
    assert (event.kind, event.number) == (UNREADABLE, 7)
