"""What the admin API does not understand it does not do: it says which member, and what it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.proxy import B0, Proxy

API = "/samewise/v1"
SAID = {"values": {"temperature": 0.5}}
DIGEST = "0" * 64
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/invalidate", {"scope": "all"}),
    ("PUT", "/profiles/default", SAID),
    ("POST", "/profiles/default/canary", {**SAID, "percent": 10}),
    ("POST", "/profiles/default/promote", {}),
    ("POST", "/profiles/default/rollback", {}),
    ("POST", "/environments/e/activate", {}),
    ("POST", "/upstreams/add", {"url": "http://127.0.0.1:1/v1"}),
    ("POST", "/upstreams/drain", {"url": "http://127.0.0.1:1/v1"}),
    ("POST", "/upstreams/remove", {"url": "http://127.0.0.1:1/v1"}),
    ("POST", "/explain", {"body": B0}),
    ("POST", "/verify", {"keys": [DIGEST]}),
    ("DELETE", f"/keys/{DIGEST}", {}),
    ("DELETE", f"/entries/{DIGEST}", {}),
]


async def refused(proxy: Proxy, method: str, path: str, body: Any, *, code: str, param: str | None) -> None:
    got = await proxy.request(method, API + path, body=body, admin=True)
    told = got.json()["error"]
    assert (got.status, told["code"], told["param"]) == (400, code, param), (method, path, body, got)
    assert told["message"] and told["type"] == "invalid_request_error"


async def numbers(proxy: Proxy) -> tuple[Any, Any, float]:
    """What the journal made of this proxy."""
    changes = await proxy.metric("samewise_changes_total") + await proxy.metric("samewise_invalidations_total")
    return await proxy.admin("GET", "/profiles"), await proxy.admin("GET", "/keys"), changes


async def test_an_unknown_or_repeated_member_stops_every_change(proxy: Proxy) -> None:
    assert (await proxy.post(B0)).cache == "MISS"
    before = await numbers(proxy)
    for method, path, body in CALLS:
        await refused(proxy, method, path, {**body, "dryrun": True}, code="unknown_member", param="dryrun")
        twice = json.dumps({**body, "reason": "a"})[:-1] + ', "reason": "b"}'
        await refused(proxy, method, path, twice.encode(), code="duplicate_member", param="reason")
        await refused(proxy, method, f"{path}?dry_run=true", body or None, code="unknown_parameter", param="dry_run")
        await refused(proxy, method, path, b"[]", code="invalid_json", param=None)
    told = (await proxy.request("POST", f"{API}/invalidate", body={"dryrun": 1}, admin=True)).json()["error"]
    assert "'dryrun'" in told["message"] and "dry_run" in told["message"]
    inner = b'{"values": {"temperature": 0.5, "temperature": 0.6}}'
    await refused(proxy, "PUT", "/profiles/default", inner, code="duplicate_member", param="temperature")
    assert await numbers(proxy) == before
    assert (await proxy.post(B0)).cache == "HIT"


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "/invalidate", {"scope": "all", "value": "m"}, "value"),
        ("POST", "/invalidate", {"scope": "all", "value": ["m"]}, "value"),
        ("POST", "/invalidate", {"scope": "model", "value": "m", "tenant": "a"}, "tenant"),
        ("POST", "/invalidate", {"scope": "tag", "value": "\ud800"}, "value"),
        ("PUT", "/profiles/default", {**SAID, "match": 3}, "match"),
        ("PUT", "/profiles/default", {**SAID, "match": "another-*"}, "match"),
        ("PUT", "/profiles/a%0Ab", {**SAID, "match": "*"}, "name"),
        ("PUT", "/profiles/default", {"values": {"logit_bias": {"1": 10**30}}}, "values"),
        ("PUT", "/profiles/default", {"values": {"temperature": 10**400}}, "values"),
        ("POST", "/profiles/default/canary", {**SAID, "percent": True}, "percent"),
        ("POST", "/upstreams/add", {"url": 3}, "url"),
        ("POST", "/environments/e/activate", {"model": 3}, "model"),
        ("POST", "/explain", {"body": B0, "headers": "z"}, "headers"),
        ("POST", "/explain", {"body": B0, "headers": [1]}, "headers"),
        ("POST", "/explain", {"body": B0, "headers": {"a": 1}}, "headers"),
        ("POST", "/explain", {"body": B0, "headers": {"A": "1", "a": "2"}}, "headers"),
        ("POST", "/explain", {"body": B0, "tenant": 3}, "tenant"),
        ("POST", "/explain", {"body": B0, "full": "x"}, "full"),
        ("POST", "/explain", {"body": B0, "nearest": 0}, "nearest"),
        ("POST", "/verify", {"keys": [DIGEST], "key": DIGEST}, "keys"),
        ("POST", "/verify", {"keys": DIGEST}, "keys"),
    ],
)
async def test_what_makes_no_sense_is_400_and_named(
    pair: Any, method: str, path: str, body: dict[str, Any], param: str
) -> None:
    got = await pair.proxy.request(method, API + path, body=body, admin=True)
    assert (got.status, got.json()["error"]["param"]) == (400, param), got


async def test_a_key_that_nothing_knows_is_no_key_and_one_that_was_taken_away_stays_known(
    make_proxy: MakeProxy,
) -> None:
    known = "ab" * 32
    proxy = await make_proxy(settings={"auth.keys": [{"tenant": "a", "sha256": known}]})
    got = await proxy.request("DELETE", f"{API}/keys/{DIGEST}", admin=True)
    assert (got.status, got.json()["error"]["code"]) == (404, "unknown_key")
    assert "no such key" in got.json()["error"]["message"]
    assert await proxy.metric("samewise_changes_total", kind="key-revoke") == 0
    for _ in range(2):
        assert await proxy.admin("DELETE", f"/keys/{known.upper()}") == {"revoked": known[:12]}


RAW = [
    b"POST /samewise/v1/invalidate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: a/b\r\nContent-Type: a/c\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    b"garbage\r\n\r\n",
    b"GET /samewise/v1/status HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"POST /samewise/v1/explain HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
    b"Content-Length: 7\r\n\r\nnothing",
]


@pytest.mark.parametrize("asked", RAW)
async def test_every_error_of_the_admin_port_is_json_in_one_shape(pair: Any, asked: bytes) -> None:
    await _in_shape(pair.proxy, asked, admin=True)


async def test_a_probe_with_another_method_is_refused_in_the_same_shape(pair: Any) -> None:
    got = await _in_shape(pair.proxy, RAW[4], admin=False)
    assert b"allow: get, head" in got.lower()


async def _in_shape(proxy: Proxy, asked: bytes, *, admin: bool) -> bytes:
    got = await proxy.raw(asked, admin=admin)
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), got
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and 400 <= int(head.split()[1]) < 500, got
    return got
