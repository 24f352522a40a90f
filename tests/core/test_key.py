from __future__ import annotations

import copy
import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from samewise.core.controls import Controls, with_query
from samewise.core.families.registry import BY_NAME
from samewise.core.fingerprint import Environment
from samewise.core.key import parts, preimage
from samewise.core.plan import Context, Epochs
from samewise.core.request import plan, upstream_body
from tests.core.planning import B0, OBSERVED, OTHER, VLLM, family, key_of, planned, raw

CHAT = BY_NAME["chat"]
_TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_JSON = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=8
)
_WIDE = {
    **B0,
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:,a"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "user", "content": "how old is he?", "name": "n"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"zebra": 1, "apple": 2}}},
        {"type": "function", "function": {"name": "g", "parameters": {}}},
    ],
    "top_k": 5,
    "chat_template_kwargs": {"enable_thinking": False, "x": 1.5},
    "zz_future": 1,
}


def _respelled(value: Any, draw: random.Random, top: bool = True) -> str:
    """The same JSON with other white space, escapes, number spelling, and another order at the top."""
    space = draw.choice(["", " ", "\n\t "])
    match value:
        case dict():
            members = list(value.items())
            if top:
                draw.shuffle(members)
            inside = f"{space},{space}".join(
                f"{_respelled(name, draw, False)}{space}:{space}{_respelled(item, draw, False)}"
                for name, item in members
            )
            return f"{{{space}{inside}{space}}}"
        case list():
            return f"[{space}" + f",{space}".join(_respelled(item, draw, False) for item in value) + "]"
        case str():
            return '"' + "".join(_character(each, draw) for each in value) + '"'
        case float() if draw.random() < 0.5:
            return f"{value:.17e}"
        case _:
            return json.dumps(value)


def _character(each: str, draw: random.Random) -> str:
    if draw.random() < 0.3 or each in '"\\' or ord(each) < 0x20 or 0xD800 <= ord(each) < 0xE000:
        data = each.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{data[i]:02x}{data[i + 1]:02X}" for i in range(0, len(data), 2))
    return each


@given(st.dictionaries(_TEXT, _JSON, max_size=4), st.builds(random.Random, st.integers(0, 2**32)))
def test_spelling_never_matters(more: dict[str, Any], draw: random.Random) -> None:
    body = {**{name: value for name, value in more.items() if name != "cache"}, **_WIDE}
    again = _respelled(body, draw).encode()
    for environment in (OBSERVED, VLLM):
        assert key_of(again, of=CHAT, environment=environment) == key_of(raw(body), of=CHAT, environment=environment)


@pytest.mark.parametrize("spelling", [b"16", b"16.0", b"1.6e1", b"160e-1"])
def test_a_number_at_the_top_is_one_however_it_is_spelled(spelling: bytes) -> None:
    body = b'{"model":"m","messages":[],"temperature":0e5,"max_tokens":%s,"logit_bias":{"5":1.0}}' % spelling
    assert key_of(body) == key_of(b'{"model":"m","messages":[],"temperature":0,"max_tokens":16,"logit_bias":{"5":1}}')


def test_a_number_inside_a_schema_is_what_the_template_prints() -> None:
    one = {**B0, "tools": [{"parameters": {"minimum": 1}}]}
    other = {**B0, "tools": [{"parameters": {"minimum": 1.0}}]}
    assert key_of(one) != key_of(other)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    match value:
        case dict():
            return [leaf for name, item in value.items() for leaf in _leaves(item, (*path, name))]
        case list():
            return [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))]
        case _:
            return [path]


@pytest.mark.parametrize("path", _leaves(_WIDE), ids=str)
def test_any_changed_leaf_is_another_key(path: tuple[Any, ...]) -> None:
    body = copy.deepcopy(_WIDE)
    holder: Any = body
    for step in path[:-1]:
        holder = holder[step]
    match holder[path[-1]]:
        case str(text):
            holder[path[-1]] = text + "!"
        case None:
            holder[path[-1]] = "!"
        case bool(flag):
            holder[path[-1]] = not flag
        case number:
            holder[path[-1]] = number + 1
    assert key_of(body, assume_defaults=True) != key_of(_WIDE)


@pytest.mark.parametrize("name", [*_WIDE])
def test_any_member_left_out_is_another_key(name: str) -> None:
    if name in ("model", "temperature"):
        return
    body = {member: value for member, value in _WIDE.items() if member != name}
    assert key_of(body, of=CHAT) != key_of(_WIDE, of=CHAT)


@pytest.mark.parametrize(
    "swapped",
    [
        {"messages": [_WIDE["messages"][1], _WIDE["messages"][0], *_WIDE["messages"][2:]]},
        {"messages": [{"content": "s", "role": "system"}, *_WIDE["messages"][1:]]},
        {"messages": [*_WIDE["messages"][:3], *_WIDE["messages"][4:]]},
        {"tools": _WIDE["tools"][::-1]},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "description": "d", "parameters": {"apple": 2, "zebra": 1}},
                },
                _WIDE["tools"][1],
            ]
        },
    ],
)
def test_order_inside_messages_tools_and_schemas_counts(swapped: dict[str, Any]) -> None:
    assert key_of({**_WIDE, **swapped}, of=CHAT) != key_of(_WIDE, of=CHAT)


_VARIANTS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 17},
    {"max_completion_tokens": 17},
    {"top_p": 0.9},
    {"n": 2},
    {"stop": ["x"]},
    {"stop": "x"},
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"logit_bias": {"5": 1}},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"seed": 8},
    {"temperature": 0.1, "top_p": 1},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"z": 1, "a": 2}}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": 2, "z": 1}}}}},
    {"tool_choice": "none"},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"parallel_tool_calls": False},
    {"prediction": {"type": "content", "content": "x"}},
    {"top_k": 5},
    {"min_p": 0.1},
    {"repetition_penalty": 1.1},
    {"min_tokens": 3},
    {"ignore_eos": True},
    {"stop_token_ids": [2]},
    {"skip_special_tokens": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"structured_outputs": {"json": {}}},
    {"guided_json": {}},
    {"zz_future": 1},
    {"zz_future": True},
    {"zz_future": "1"},
    {"zz_future": None},
    {"cache_salt": "u1"},
    {"cache_salt": "u2"},
    {"cache_salt": ""},
    {"prompt": "hi"},
    {"model": "m-large"},
]


@pytest.mark.parametrize("environment", [OBSERVED, OTHER])
def test_every_variant_of_a_request_has_a_key_of_its_own(environment: Environment) -> None:
    keys = [key_of({**B0, **variant}, of=CHAT, environment=environment) for variant in _VARIANTS]
    assert len(set(keys)) == len(_VARIANTS)


@pytest.mark.parametrize("environment", [OBSERVED, VLLM])
def test_every_form_of_a_completion_has_a_key_of_its_own(environment: Environment) -> None:
    forms: list[dict[str, Any]] = [
        {"prompt": "hi"},
        {"prompt": [1, 2]},
        {"prompt": "hi", "suffix": "x"},
        {"prompt": "hi", "echo": True},
        {"prompt": "hi", "best_of": 2},
        {"messages": B0["messages"], "prompt": "hi"},
    ]
    base = {"model": "m", "temperature": 0, "max_tokens": 16}
    keys = {key_of({**base, **form}, of=BY_NAME["completions"], environment=environment) for form in forms}
    chat = {key_of({**base, **form}, of=CHAT, environment=environment) for form in forms}
    assert len(keys) == len(chat) == len(forms)
    assert not keys & chat


def test_images_are_told_apart_to_the_last_byte() -> None:
    draw = random.Random(5)
    images = {draw.randbytes(64).hex() for _ in range(2000)}
    keys = set()
    for image in images:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
        keys.add(key_of({**B0, "messages": [{"role": "user", "content": [part]}]}, of=CHAT))
    assert len(keys) == len(images) == 2000


def _told(**changed: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "tenant": "t",
        "namespace": "n",
        "family": "chat",
        "model": "m",
        "environment": OBSERVED,
        "epochs": Epochs(),
        "sample": 0,
        "request": {"a": 1},
    }
    return {**base, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "u"},
        {"tenant": "tn", "namespace": ""},
        {"namespace": "u"},
        {"family": "completions"},
        {"model": "m2"},
        {"environment": Environment(id="observed-2", origin="observed")},
        {"epochs": Epochs(all=1)},
        {"epochs": Epochs(model=1)},
        {"epochs": Epochs(environment=1)},
        {"epochs": Epochs(tenant=1)},
        {"epochs": Epochs(profile=1)},
        {"sample": 1},
        {"request": {"a": "1"}},
        {"request": {"a": True}},
        {"request": {"a": [1]}},
        {"request": {"a": 1, "b": None}},
        {"request": {}},
    ],
    ids=str,
)
def test_every_part_is_in_the_preimage(changed: dict[str, Any]) -> None:
    assert preimage(**_told(**changed)) != preimage(**_told())


def test_all_of_that_reaches_the_key_of_a_plan() -> None:
    keys = {
        key_of(B0),
        key_of(B0, tenant="a"),
        key_of(B0, tenant="b"),
        key_of(B0, controls=Controls(namespace="a")),
        key_of(B0, controls=Controls(sample=1)),
        key_of(B0, of=family("completions")),
        key_of(B0, environment=OTHER),
        key_of({**B0, "model": "n"}),
        *(key_of(B0, epochs=Epochs(**{name: 1})) for name in ("all", "model", "environment", "tenant", "profile")),
    }
    assert len(keys) == 13


def test_what_says_nothing_of_the_answer_is_in_no_key() -> None:
    first = planned(B0, number=1).units[0].key
    assert first == planned(B0, number=2, controls=Controls(no_cache=True, ttl=5, tags=("a",), max_age=1)).units[0].key


_WORLD = st.tuples(_TEXT, _TEXT, _TEXT, _TEXT, st.integers(0, 3), st.dictionaries(_TEXT, _JSON, max_size=3))


@given(_WORLD, _WORLD)
def test_two_different_worlds_never_share_a_preimage(one: Any, other: Any) -> None:
    def image(world: Any) -> bytes:
        tenant, namespace, family_name, model, sample, request = world
        return preimage(
            **_told(
                tenant=tenant,
                namespace=namespace,
                family=family_name,
                model=model,
                sample=sample,
                request={name: value for name, value in request.items() if name != "model"},
            )
        )

    assume(_exact(one) != _exact(other))
    assert image(one) != image(other)


def _exact(world: Any) -> str:
    *rest, request = world
    plain = {name: request[name] for name in sorted(request) if name != "model"}
    spelled = {
        name: int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
        for name, value in plain.items()
    }
    if isinstance(spelled.get("logit_bias"), (dict, list)):
        del spelled["logit_bias"]
    return json.dumps([*rest, spelled])


@given(st.dictionaries(_TEXT, _JSON, max_size=4))
def test_a_preimage_can_be_read_back(request: dict[str, Any]) -> None:
    request.pop("model", None)
    told = parts(preimage(**_told(request=request, epochs=Epochs(tenant=4))))
    assert told["request"].keys() == request.keys()
    assert told["epochs"] == {"all": 0, "model": 0, "environment": 0, "tenant": 4, "profile": 0}


def test_a_key_is_64_hex_digits() -> None:
    found = plan(CHAT, raw(B0), Controls(), Context(environment=OBSERVED)).units[0].key
    assert found is not None
    assert len(found) == 64
    assert int(found, 16) >= 0


def test_what_beside_the_body_may_change_the_answer_is_in_the_key() -> None:
    parts: dict[str, Any] = {
        "tenant": "",
        "namespace": "",
        "family": "chat",
        "model": "m",
        "environment": Environment(id="e", origin="contract"),
        "epochs": Epochs(),
        "sample": 0,
        "request": {},
    }
    plain = preimage(**parts)
    assert plain == preimage(**parts, variant=())
    query = preimage(**parts, variant=(("?", "api-version=1"),))
    header = preimage(**parts, variant=(("openai-beta", "api-version=1"),))
    assert len({plain, query, header}) == 3


def test_a_key_is_the_whole_sha256_of_its_preimage() -> None:
    unit = planned().units[0]
    assert unit.key == hashlib.sha256(unit.preimage).hexdigest()


def test_texts_that_no_encoding_can_hold_are_told_apart() -> None:
    texts = [b"\\ud800", b"\\udbff", b"\\udc00", b"?", b"\\ufffd", b"\\udc00\\ud800"]
    bodies = [b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"%s"}]}' % text for text in texts]
    assert len({key_of(body, of=CHAT) for body in bodies}) == len(texts)


def test_the_query_is_part_of_the_key() -> None:
    queries = ["", "a=1", "a=2", "b=1", "a=1&b=1"]
    keys = {key_of(controls=with_query(Controls(), query)) for query in queries}
    assert len(keys) == len(queries)
    both = {key_of(controls=with_query(Controls(variant=(("openai-beta", value),)), "a=1")) for value in ("x", "y")}
    assert len(both) == 2


def test_a_tenants_salt_is_sent_and_never_keyed() -> None:
    plain, salted = planned(tenant="a"), planned(tenant="a", salt="s" * 32)
    assert plain.units[0].key == salted.units[0].key
    sent = upstream_body(salted, CHAT, salted.units, stream=False)
    assert json.loads(sent) == {**B0, "cache_salt": "s" * 32}
    assert sent.startswith(raw(B0)[:-1])
    own = planned({**B0, "cache_salt": "mine"}, salt="s" * 32)
    assert upstream_body(own, CHAT, own.units, stream=False) == raw({**B0, "cache_salt": "mine"})
    streamed = planned({**B0, "stream": True}, salt="s" * 32)
    assert json.loads(upstream_body(streamed, CHAT, streamed.units, stream=True))["cache_salt"] == "s" * 32
