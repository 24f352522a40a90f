from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from samewise.core.fingerprint import Environment
from samewise.core.plan import Snapshot
from samewise.core.reason import Reason
from samewise.core.request import upstream_body
from samewise.core.sampling import FIELDS, seed_of, validate
from tests.core.planning import B0, CHAT, OBSERVED, OTHER, VLLM, family, key_of, planned, reason_of

WARM: dict[str, Any] = {**B0, "temperature": 0.7}
BARE: dict[str, Any] = {"model": "m", "messages": []}
REFERENCE = Environment(id="r", origin="contract", engine="reference", defaults={})
LABEL = Environment(id="l", origin="label")
UNTOLD = Environment(id="u", origin="contract", engine="vllm")


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def _sent(body: dict[str, Any], **how: Any) -> dict[str, Any]:
    found = planned(body, **how)
    sent: dict[str, Any] = json.loads(upstream_body(found, CHAT, found.units, stream=False))
    return sent


# --- reproducible or not -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [None, 0.7, 1, True, "0", "absent", False, 1e-9])
@pytest.mark.parametrize("seed", [None, -1, -1.0, "absent"])
def test_sampling_without_a_seed_is_not_cached(temperature: Any, seed: Any) -> None:
    body = {**WARM, "top_p": 1, "temperature": temperature, "seed": seed}
    body = {name: value for name, value in body.items() if value != "absent"}
    assert reason_of(body) is Reason.UNSEEDED
    assert planned(body).raw is not None


@pytest.mark.parametrize("environment", [OBSERVED, OTHER, VLLM, REFERENCE, LABEL])
def test_a_missing_temperature_is_never_zero(environment: Environment) -> None:
    assert reason_of(BARE, environment=environment) is Reason.UNSEEDED


def test_a_missing_temperature_is_zero_where_the_backend_says_so() -> None:
    cold = Environment(id="c", origin="contract", engine="vllm", defaults={"temperature": 0})
    assert key_of(BARE, environment=cold) == key_of({**BARE, "temperature": 0.0, "seed": 3}, environment=cold)


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0])
def test_temperature_zero_is_enough(temperature: float) -> None:
    assert key_of({**BARE, "temperature": temperature})


@pytest.mark.parametrize("seed", [True, False, 7.5, "7", [7], 1e300])
def test_what_is_no_integer_is_no_seed(seed: Any) -> None:
    assert seed_of(seed) is None
    for unseeded in ("bypass", "pin"):
        assert reason_of({**WARM, "top_p": 1, "seed": seed}, unseeded=unseeded) is Reason.UNSEEDED


def test_seeds_are_told_apart_exactly() -> None:
    seeds = [0, 1, -2, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64]
    assert len({key_of({**WARM, "top_p": 1, "seed": seed}) for seed in seeds}) == len(seeds)
    assert key_of({**WARM, "top_p": 1, "seed": 7.0}) == key_of({**WARM, "top_p": 1, "seed": 7})


def test_a_seed_counts_only_where_the_api_has_one() -> None:
    seedless = family("messages", seeded=False)
    assert reason_of({**WARM, "top_p": 1}, of=seedless) is Reason.UNSEEDED
    assert reason_of({**WARM, "top_p": 1}, of=seedless, unseeded="pin") is Reason.UNSEEDED
    assert key_of({**WARM, "temperature": 0}, of=seedless)


def test_unsampled_families_need_no_seed_and_take_no_profile() -> None:
    embeddings = family("embeddings", sampled=False)
    warm = Snapshot(profile="p", version=2, values={"temperature": 1.2})
    assert key_of(BARE, of=embeddings) == key_of(BARE, of=embeddings, snapshot=warm)
    assert planned(BARE, of=embeddings, snapshot=warm).raw is not None


# --- pin and record ------------------------------------------------------------------------------------


def test_record_keeps_what_cant_be_repeated() -> None:
    body = {**_without(WARM, "seed"), "top_p": 1}
    assert key_of(body, unseeded="record") == key_of({**body, "seed": -1}, unseeded="record")
    assert planned(body, unseeded="record").raw is not None


@pytest.mark.parametrize("environment", [VLLM, OTHER])
def test_a_pinned_seed_is_sent_told_and_shared_with_who_says_it(environment: Environment) -> None:
    body = _without(WARM, "seed")
    unit = planned(body, environment=environment, unseeded="pin").units[0]
    assert unit.pinned
    assert unit.seed is not None
    assert 0 <= unit.seed < 2**63 - 2**16
    assert unit.origins["seed"] == "pin"
    assert _sent(body, environment=environment, unseeded="pin")["seed"] == unit.seed
    for spelled in (None, -1):
        assert key_of({**body, "seed": spelled}, environment=environment, unseeded="pin") == unit.key
    assert key_of({**body, "seed": unit.seed}, environment=environment) == unit.key


def test_pinned_seeds_follow_from_request_and_sample() -> None:
    from samewise.core.controls import Controls

    body = _without(WARM, "seed")
    seeds = [
        planned(body, environment=VLLM, unseeded="pin", controls=Controls(sample=n)).units[0].seed for n in range(50)
    ]
    assert len(set(seeds)) == 50
    again = planned(dict(reversed(body.items())), environment=VLLM, unseeded="pin").units[0].seed
    assert again == seeds[0]
    assert planned({**body, "max_tokens": 17}, environment=VLLM, unseeded="pin").units[0].seed not in seeds


def test_greedy_and_seeded_requests_are_never_pinned() -> None:
    assert not planned(B0, environment=VLLM, unseeded="pin").units[0].pinned
    assert planned(WARM, environment=VLLM, unseeded="pin").units[0].seed is None


# --- unknown defaults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [OBSERVED, UNTOLD])
def test_sampling_on_unknown_defaults_must_be_spelled_out(environment: Environment) -> None:
    assert reason_of(WARM, environment=environment) is Reason.UNKNOWN_DEFAULTS
    assert reason_of({**WARM, "top_p": None}, environment=environment) is Reason.UNKNOWN_DEFAULTS
    assert reason_of(_without({**WARM, "top_p": 1}, "temperature"), environment=environment) is Reason.UNKNOWN_DEFAULTS
    assert key_of({**WARM, "top_p": 1}, environment=environment)
    assert key_of(B0, environment=environment)
    assert key_of(WARM, environment=environment, assume_defaults=True)
    profile = Snapshot(profile="p", version=1, values={"top_p": 0.9})
    assert key_of(WARM, environment=environment, snapshot=profile)


@pytest.mark.parametrize("wrong", [{"temperature": "x"}, {"temperature": -5}, {"top_p": 9}, {"top_k": 1.5}])
def test_defaults_that_can_be_no_such_value_are_unknown(wrong: dict[str, Any]) -> None:
    environment = msgspec.structs.replace(VLLM, defaults={**(VLLM.defaults or {}), **wrong})
    assert reason_of(WARM, environment=environment) is Reason.UNKNOWN_DEFAULTS
    assert key_of(B0, environment=environment)


def test_nothing_is_filled_in_where_defaults_are_unknown() -> None:
    body = {**WARM, "top_p": 1}
    assert _sent(body, environment=UNTOLD) == body
    assert _sent(WARM, environment=UNTOLD, assume_defaults=True) == WARM
    assert _sent(WARM, environment=LABEL) == WARM


def test_operators_vouch_for_a_labelled_environment() -> None:
    assert key_of(WARM, environment=LABEL)
    assert key_of({**BARE, "seed": 1}, environment=LABEL)


def test_without_an_environment_nothing_is_cached_but_profiles_still_count() -> None:
    profile = Snapshot(profile="p", version=1, values={"top_p": 0.9})
    found = planned(B0, environment=None, snapshot=profile)
    assert found.units[0].reason is Reason.UNKNOWN_ENVIRONMENT
    assert found.units[0].key is None
    assert _sent(B0, environment=None, snapshot=profile) == {**B0, "top_p": 0.9}


# --- defaults ------------------------------------------------------------------------------------------

_SPELLED = {
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": 20,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
}


def test_a_known_engine_is_told_every_value() -> None:
    sent = _sent(WARM, environment=VLLM)
    assert sent == {**WARM, **_SPELLED}
    assert list(sent)[: len(WARM)] == list(WARM)


@pytest.mark.parametrize("environment", [VLLM, OTHER])
@pytest.mark.parametrize("name", ["temperature", "top_k"])
def test_a_default_of_the_manifest_spelled_out_is_the_same_request(environment: Environment, name: str) -> None:
    body = {**_without(WARM, "temperature"), "temperature": None}
    spelled = {**body, name: (environment.defaults or {})[name]}
    assert key_of(body, environment=environment) == key_of(spelled, environment=environment)


@pytest.mark.parametrize("name", list(_SPELLED))
def test_a_default_of_the_engine_spelled_out_or_null_is_the_same_request(name: str) -> None:
    assert key_of(WARM, environment=VLLM) == key_of({**WARM, name: _SPELLED[name]}, environment=VLLM)
    if name != "temperature":
        assert key_of(WARM, environment=VLLM) == key_of({**WARM, name: None}, environment=VLLM)


def test_a_changed_default_is_another_request_even_under_the_same_id() -> None:
    moved = Environment(id=VLLM.id, origin="contract", engine="vllm", defaults={"temperature": 0.6, "top_k": 21})
    assert key_of(WARM, environment=VLLM) != key_of(WARM, environment=moved)
    assert key_of({**WARM, "top_k": 5}, environment=VLLM) == key_of({**WARM, "top_k": 5}, environment=moved)


def test_an_unknown_engine_is_sent_nothing_but_its_defaults_are_in_the_key() -> None:
    found = planned(WARM, environment=OTHER)
    assert found.raw is not None
    assert b'"top_k":20' in found.units[0].preimage
    assert found.units[0].origins["top_k"] == "manifest"


def test_the_length_that_vllm_gives_completions_is_in_the_key() -> None:
    completions = family("completions")
    body = _without(B0, "max_tokens")
    bare = key_of(body, of=completions, environment=VLLM)
    assert bare == key_of({**body, "max_tokens": 16}, of=completions, environment=VLLM)
    unlimited = planned({**body, "max_tokens": None}, of=completions, environment=VLLM)
    assert unlimited.units[0].key != bare
    assert unlimited.units[0].request["max_tokens"] is None


def test_a_length_of_the_manifest_is_in_the_key_of_chat_and_not_sent() -> None:
    short = Environment(id="v", origin="contract", engine="vllm", defaults={"max_new_tokens": 9})
    body = _without(B0, "max_tokens")
    assert key_of(body, environment=short) == key_of({**body, "max_tokens": 9}, environment=short)
    assert "max_tokens" not in _sent(body, environment=short)
    assert key_of({**body, "max_completion_tokens": 5}, environment=short) == key_of(
        {**body, "max_completion_tokens": 5},
        environment=Environment(id="v", origin="contract", engine="vllm", defaults={}),
    )


@pytest.mark.parametrize("member", [{"n": 1}, {"n": 1.0}, {"stop": []}, {"ignore_eos": False}, {"min_tokens": 0}])
def test_what_says_nothing_to_a_known_engine_makes_no_other_entry(member: dict[str, Any]) -> None:
    assert key_of(WARM, environment=VLLM) == key_of({**WARM, **member}, environment=VLLM)
    assert _sent({**WARM, **member}, environment=VLLM).items() >= member.items()
    assert key_of(WARM, environment=OTHER) != key_of({**WARM, **member}, environment=OTHER)


@pytest.mark.parametrize("member", [{"n": True}, {"ignore_eos": 0}, {"min_tokens": False}, {"stop": {}}])
def test_what_only_looks_like_such_a_value_is_told_apart(member: dict[str, Any]) -> None:
    assert key_of(WARM, environment=VLLM) != key_of({**WARM, **member}, environment=VLLM)


def test_an_explicit_null_length_of_completions_is_nobodys_default() -> None:
    completions = family("completions")
    short = Environment(id="v", origin="contract", engine="vllm", defaults={"max_new_tokens": 9})
    keys = {key_of({**B0, "max_tokens": length}, of=completions, environment=short) for length in (None, 9, 16, 17)}
    assert len(keys) == 4


# --- greedy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [VLLM, REFERENCE])
@pytest.mark.parametrize(
    "member", [{"seed": 8}, {"seed": None}, {"seed": -1}, {"top_p": 0.5}, {"top_k": 5}, {"top_k": 5.0}, {"min_p": 0.1}]
)
def test_greedy_requests_to_a_known_engine_share_an_entry(environment: Environment, member: dict[str, Any]) -> None:
    assert key_of({**B0, **member}, environment=environment) == key_of(B0, environment=environment)
    assert _sent({**B0, **member}, environment=environment) == _sent(B0, environment=environment)


@pytest.mark.parametrize("member", [{"seed": 8}, {"top_p": 0.5}, {"top_k": 5}, {"min_p": 0.1}, {"n": 1}])
@pytest.mark.parametrize("environment", [OTHER, OBSERVED])
def test_nothing_merges_on_an_unknown_engine(environment: Environment, member: dict[str, Any]) -> None:
    assert key_of({**B0, **member}, environment=environment) != key_of(B0, environment=environment)


@pytest.mark.parametrize("member", [{"seed": 2**63}, {"seed": 7.5}, {"top_p": 0}, {"top_k": -2}, {"min_p": 2}])
def test_what_the_engine_would_refuse_stays_so_that_its_error_is_heard(member: dict[str, Any]) -> None:
    assert key_of({**B0, **member}, environment=VLLM) != key_of(B0, environment=VLLM)
    assert _sent({**B0, **member}, environment=VLLM).items() >= member.items()


@pytest.mark.parametrize(
    "member",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"stop": ["x"]},
        {"logit_bias": {"5": 1}},
        {"n": 2},
        {"max_tokens": 17},
        {"logprobs": True},
        {"temperature": 0.01},
    ],
)
def test_what_counts_under_greedy_still_counts(member: dict[str, Any]) -> None:
    assert key_of({**B0, **member}, environment=VLLM) != key_of(B0, environment=VLLM)


def test_a_tiny_temperature_is_what_vllm_makes_of_it_and_not_greedy() -> None:
    assert key_of({**WARM, "temperature": 0.001}, environment=VLLM) == key_of(
        {**WARM, "temperature": 0.01}, environment=VLLM
    )
    assert _sent({**WARM, "temperature": 1e-9}, environment=VLLM)["temperature"] == 0.01
    assert reason_of({**_without(WARM, "seed"), "temperature": 0.001}, environment=VLLM) is Reason.UNSEEDED
    assert key_of({**WARM, "temperature": 0.001}, environment=REFERENCE) != key_of(
        {**WARM, "temperature": 0.01}, environment=REFERENCE
    )


def test_both_spellings_of_no_top_k_are_one() -> None:
    assert key_of({**WARM, "top_k": -1}, environment=VLLM) == key_of({**WARM, "top_k": 0}, environment=VLLM)


# --- profiles ------------------------------------------------------------------------------------------


def test_a_profile_fills_what_was_left_out_and_is_always_sent() -> None:
    profile = Snapshot(profile="calm", version=3, values={"temperature": 0.2, "top_p": 0.9, "seed": 5})
    found = planned({**BARE, "top_p": 0.5, "temperature": None}, snapshot=profile)
    assert found.units[0].request == {**BARE, "top_p": 0.5, "temperature": 0.2, "seed": 5}
    assert found.units[0].origins["temperature"] == "calm@3"
    assert found.units[0].origins["top_p"] == "request"
    assert found.raw is None


def test_only_the_values_of_a_snapshot_are_in_the_key() -> None:
    first = Snapshot(profile="calm", version=3, values={"top_p": 0.9})
    second = Snapshot(profile="calm", version=9, values={"top_p": 0.9})
    assert key_of(B0, snapshot=first) == key_of(B0, snapshot=second) == key_of({**B0, "top_p": 0.9})
    third = Snapshot(profile="calm", version=10, values={"top_p": 0.8})
    assert key_of(B0, snapshot=first) != key_of(B0, snapshot=third)


def test_a_profiles_length_goes_by_the_familys_name_and_gives_way() -> None:
    profile = Snapshot(profile="p", version=1, values={"max_tokens": 9, "stop": ["x"]})
    body = _without(B0, "max_tokens")
    assert planned(body, of=family("responses"), snapshot=profile).units[0].request["max_output_tokens"] == 9
    assert planned(body, of=family("messages"), snapshot=profile).units[0].request["stop_sequences"] == ["x"]
    assert "max_tokens" not in planned({**body, "max_completion_tokens": 4}, snapshot=profile).units[0].request


def test_a_bypassed_request_gets_the_profile_and_nothing_else() -> None:
    profile = Snapshot(profile="p", version=1, values={"top_p": 0.9})
    body = _without(WARM, "seed")
    assert _sent(body, environment=VLLM, snapshot=profile) == {**body, "top_p": 0.9}
    assert planned(body, environment=VLLM).raw is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", "0.7"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("stop", [""]),
        ("stop", 1),
        ("stop_token_ids", ["1"]),
        ("logit_bias", {"a": 1}),
        ("ignore_eos", 1),
        ("n", 0),
        ("temprature", 1),
    ],
)
def test_a_wrong_profile_value_is_refused_by_name(name: str, value: Any) -> None:
    wrong = validate({name: value, "max_tokens": value if name == "max_tokens" else 5})
    assert [field for field, _ in wrong] == [name]
    assert wrong[0][1]


def test_values_that_contradict_each_other_are_refused() -> None:
    assert validate({"min_tokens": 5, "max_tokens": 4})[0][0] == "min_tokens"
    assert validate({"n": 2, "temperature": 0})[0][0] == "n"


def test_right_profile_values_pass() -> None:
    right = {
        "temperature": 0,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": 2**63 - 1,
        "max_tokens": 1,
        "min_tokens": 1,
        "n": 1,
        "stop": "x",
        "stop_token_ids": [2],
        "bad_words": ["x"],
        "logit_bias": {"5": -100},
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    assert validate(right) == []
    assert right.keys() == FIELDS
