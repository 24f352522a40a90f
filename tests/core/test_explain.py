from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samewise.core import canonical
from samewise.core.answer import Answer
from samewise.core.controls import Controls
from samewise.core.difference import differences, first_difference, similarity
from samewise.core.entry import Entry
from samewise.core.explain import diff, explain, nearest
from samewise.core.plan import Plan, Snapshot
from tests.core.planning import B0, OTHER, VLLM, family, planned

SECRET = "the patient's name is Ada"
_TEXT = st.text(max_size=5)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


def _said(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    return {**B0, "messages": messages, **more}


def _entry(found: Plan, *, created: float = 0.0, **changed: Any) -> Entry:
    unit = found.units[0]
    told: dict[str, Any] = {
        "key": unit.key or "0" * 64,
        "created": created,
        "ttl": 60.0,
        "began": 0,
        "tenant": found.context.tenant,
        "family": found.family,
        "model": found.model,
        "environment": found.context.environment.id if found.context.environment else "",
        "snapshot": "default@1",
        "request": canonical.encode(unit.request),
        "answer": Answer(form="json"),
        "sample": found.controls.sample,
    }
    return Entry(**{**told, **changed})


def test_every_part_and_its_source_is_told() -> None:
    profile = Snapshot(profile="calm", version=3, values={"top_p": 0.9})
    body = {**B0, "temperature": 0.5}
    told = explain(planned(body, environment=VLLM, snapshot=profile, tenant="t", controls=Controls(sample=2)))
    assert told["cacheable"] is True
    assert told["reason"] is None
    assert len(told["key"]) == 64
    assert told["snapshot"] == "calm@3"
    sources = {name: part["from"] for name, part in told["parts"].items()}
    assert sources["temperature"] == "request"
    assert sources["top_p"] == "calm@3"
    assert sources["top_k"] == "manifest"
    assert sources["presence_penalty"] == "engine"
    assert {"tenant", "model", "environment", "epochs", "family", "messages"} <= sources.keys()
    assert told["parts"]["top_k"]["value"] == 20
    assert told["parts"]["sample"]["value"] == 2
    assert told["parts"]["environment"]["value"] == VLLM.id
    json.dumps(told)


def test_why_not_is_told_with_the_parts_that_a_key_would_have() -> None:
    told = explain(planned({**B0, "temperature": 1, "seed": None}, environment=VLLM))
    assert told["key"] is None
    assert told["cacheable"] is False
    assert told["reason"] == "unseeded"
    assert told["parts"]["temperature"] == {"value": 1, "from": "request"}
    assert told["parts"]["environment"]["value"] == VLLM.id


def test_a_pinned_seed_is_told() -> None:
    found = planned({**B0, "temperature": 1, "seed": None}, environment=VLLM, unseeded="pin")
    told = explain(found)
    assert told["seed"] == told["parts"]["seed"]["value"] == found.units[0].seed
    assert told["parts"]["seed"]["from"] == "pin"


@pytest.mark.parametrize("environment", [VLLM, None])
def test_prompts_are_shown_only_when_asked_for(environment: Any) -> None:
    found = planned(_said(SECRET, system=SECRET, long="x" * 100), environment=environment)
    assert SECRET not in json.dumps(explain(found))
    assert "x" * 100 not in json.dumps(explain(found))
    assert explain(found)["parts"]["messages"]["value"][1]["role"] == "user"
    assert SECRET in json.dumps(explain(found, full=True))
    differs = diff(found, planned(_said("hi"), environment=environment))
    assert SECRET not in json.dumps(differs)
    assert SECRET in json.dumps(diff(found, planned(_said("hi"), environment=environment), full=True))


def test_members_named_like_a_part_are_not_taken_for_it() -> None:
    told = explain(planned({**B0, "tenant": "evil", "epochs": 1}, environment=VLLM, tenant="good"))
    assert told["parts"]["tenant"]["value"] == "good"
    assert told["parts"]["body.tenant"]["value"] == "evil"
    differs = diff(planned({**B0, "tenant": "a"}), planned({**B0, "tenant": "b"}))
    assert [each["path"] for each in differs] == ["body.tenant"]


def test_a_list_is_explained_item_by_item() -> None:
    lists = family("embeddings", sampled=False, together=True)
    told = explain(planned({"model": "m", "items": ["a", "b"]}, of=lists))
    assert [unit["parts"]["items"]["value"] for unit in told["units"]] == ["a", "b"]
    differs = diff(
        planned({"model": "m", "items": ["a", "b"]}, of=lists), planned({"model": "m", "items": ["a", "c"]}, of=lists)
    )
    assert differs == [{"path": "unit 1: items", "what": "character 0", "a": "b", "b": "c"}]


def test_the_same_key_has_no_differences() -> None:
    assert diff(planned(B0), planned(dict(reversed(B0.items())))) == []
    assert diff(planned(B0, environment=VLLM), planned({**B0, "seed": 9, "top_p": 0.5}, environment=VLLM)) == []


@pytest.mark.parametrize(
    ("other", "path", "what"),
    [
        (_said("hello, worms"), "messages[1].content", "character 10"),
        (_said("hello, world", max_tokens=17), "max_tokens", "value"),
        (_said("hello, world", zz=1), "zz", "only in b"),
        ({**_said("hello, world"), "messages": [{"role": "system", "content": "s"}]}, "messages[1]", "only in a"),
        (_said("hello, world", model="n"), "model", "character 0"),
        (_said("hello, world", **{"odd name": 1}), '["odd name"]', "only in b"),
    ],
)
def test_what_differs_is_told_with_its_path(other: dict[str, Any], path: str, what: str) -> None:
    differs = diff(planned(_said("hello, world")), planned(other))
    assert [(each["path"], each["what"]) for each in differs] == [(path, what)]


def test_the_order_inside_a_schema_is_a_difference() -> None:
    def with_schema(properties: dict[str, Any]) -> Plan:
        return planned({**B0, "tools": [{"parameters": properties}]})

    differs = diff(with_schema({"z": 1, "a": 2}), with_schema({"a": 2, "z": 1}))
    assert [(each["path"], each["what"]) for each in differs] == [("tools[0].parameters", "order")]
    differs = diff(with_schema({"z": 1}), with_schema({"z": 1.0}))
    assert [(each["path"], each["what"]) for each in differs] == [("tools[0].parameters.z", "number spelling")]


def test_the_order_of_the_bodys_own_members_is_none() -> None:
    body = {**B0, "temperature": 1, "seed": None}
    assert diff(planned(body), planned(dict(reversed(body.items())))) == []


def test_parts_outside_the_body_differ_by_name() -> None:
    from samewise.core.plan import Epochs

    differs = diff(planned(B0, tenant="a"), planned(B0, environment=OTHER, tenant="b", epochs=Epochs(model=2)))
    assert {"tenant", "environment", "epochs.model"} <= {each["path"] for each in differs}


def test_the_nearest_entry_is_the_one_that_differs_least() -> None:
    asked = planned(_said("What is the capital of France?"), environment=VLLM, tenant="t")
    near = _entry(planned(_said("What is the capital of Italy?"), environment=VLLM, tenant="t"))
    others = [
        _entry(planned(_said("Tell me a joke"), environment=VLLM, tenant="t")),
        _entry(planned(_said("What is the capital of France?"), environment=VLLM, tenant="u")),
        _entry(planned(_said("What is the capital of France?"), of=family("other"), environment=VLLM, tenant="t")),
        _entry(planned(B0, tenant="t"), request=b"not json"),
        _entry(planned(B0, tenant="t"), request=b"[]"),
    ]
    found = nearest(asked, [*others[:2], near, *others[2:]])
    assert found is not None
    assert found.key == near.key
    assert 0 < found.similarity < 1
    assert [(each["path"], each["what"]) for each in found.differences] == [("messages[1].content", "character 23")]
    assert "Italy" not in json.dumps(found.differences)


def test_the_nearest_entry_says_when_only_the_world_differs() -> None:
    asked = planned(B0, environment=VLLM)
    found = nearest(asked, [_entry(planned(B0, environment=VLLM), environment="old", sample=1)])
    assert found is not None
    assert {each["path"] for each in found.differences} == {"environment", "sample"}
    assert nearest(asked, []) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_first_difference_is_where_the_common_beginning_ends(a: str, b: str) -> None:
    position = first_difference(a, b)
    assert a[:position] == b[:position]
    assert a[position : position + 1] != b[position : position + 1] or a == b


@given(_JSON, _JSON)
def test_differences_are_none_exactly_for_the_same_value(a: Any, b: Any) -> None:
    assert (json.dumps(a) == json.dumps(b)) is (not list(differences(a, b)))
    assert similarity(a, a) == 1.0
    assert 0.0 <= similarity(a, b) <= 1.0
    assert similarity(a, b) == similarity(b, a)
