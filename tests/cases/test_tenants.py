"""Nobody gets another's answer, whatever he sends; who may not ask learns nothing; a key taken away opens nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import MakeProxy
from tests.support.faults import echo, prompt, readable
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, JSON, Answered, Proxy, soon, until
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]

A, B = "key-of-a-1234567890", "key-of-b-1234567890"


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def two(**of_both: Any) -> dict[str, Any]:
    """Settings with a key for each of two tenants."""
    keys = [{"tenant": tenant, "sha256": sha(key), **of_both} for tenant, key in (("a", A), ("b", B))]
    return {"auth.keys": keys}


async def post(proxy: Proxy, body: Any, key: str | None, **more: str) -> Answered:
    headers = {**({"Authorization": f"Bearer {key}"} if key is not None else {}), **more}
    return await proxy.post(body, headers={name.replace("_", "-"): value for name, value in headers.items()})


# --- isolation ----------------------------------------------------------------------------------------


async def test_the_same_question_of_two_tenants_is_two_entries_with_keys_of_their_own(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    proxy = await make_proxy(settings=two())
    a, b = await post(proxy, B0, A), await post(proxy, B0, B)
    assert (a.cache, b.cache, mb.count) == ("MISS", "MISS", 2)
    assert a.key != b.key
    assert set(a.headers) == set(b.headers)
    assert (await post(proxy, B0, A)).body == a.body
    assert (await post(proxy, B0, B)).body == b.body
    assert mb.count == 2


async def test_tenants_never_join_each_others_fetches(make_proxy: MakeProxy, mb: MockBackend) -> None:
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    proxy = await make_proxy(settings=two())
    asking = [asyncio.create_task(post(proxy, B0, key)) for key in (A, B, A, B)]
    await mb.arrived(2)
    gate.set()
    answers = await asyncio.gather(*asking)
    assert mb.count == 2
    assert answers[0].body == answers[2].body != answers[1].body == answers[3].body


@pytest.mark.parametrize(
    ("headers", "more", "query"),
    [
        ({"X-Tenant-Id": "a"}, {}, ""),
        ({"X-Org-Id": "a", "OpenAI-Organization": "a", "OpenAI-Project": "a"}, {}, ""),
        ({"x-samewise-tenant": "a"}, {}, ""),
        ({"x-samewise-key": "{key}"}, {}, ""),
        ({"Cookie": "tenant=a; session=a"}, {}, ""),
        ({"Forwarded": "for=a", "X-Forwarded-User": "a"}, {}, ""),
        ({}, {"metadata": {"tenant": "a"}}, ""),
        ({}, {"user": "a", "safety_identifier": "a"}, ""),
        ({}, {"cache": {"namespace": "a"}}, ""),
        ({}, {"cache": {"namespace": ""}}, ""),
        ({}, {"prompt_cache_key": "a"}, ""),
        ({}, {}, "?tenant=a"),
        ({}, {}, "?key={key}"),
    ],
    ids=str,
)
async def test_nothing_that_a_client_sends_selects_another_tenant(
    make_proxy: MakeProxy, mb: MockBackend, headers: dict[str, str], more: dict[str, Any], query: str
) -> None:
    proxy = await make_proxy(settings=two())
    warm = await post(proxy, B0, A)
    sent = {name: value.format(key=warm.key) for name, value in headers.items()}
    body = json.dumps({**B0, **more}).encode()
    path = f"/v1/chat/completions{query.format(key=warm.key)}"
    for extra in ({}, {"Cache-Control": "no-cache"}):
        bearer = {**JSON, "Authorization": f"Bearer {B}", **sent, **extra}
        got = await proxy.request("POST", path, body=body, headers=bearer)
        assert got.cache in {"MISS", "REFRESH"}
        assert got.body != warm.body
        assert got.key != warm.key
    again = await post(proxy, B0, A)
    assert (again.cache, again.body) == ("HIT", warm.body)


async def test_two_credentials_are_never_one(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings=two())
    await post(proxy, B0, A)
    body = json.dumps(B0).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    both = b"Authorization: Bearer %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
    for first, second in ((A, B), (B, A), (A, A)):
        got = await proxy.raw(head + both % (first.encode(), second.encode(), len(body)) + body)
        assert got.startswith(b"HTTP/1.1 401 ")
    mixed = await proxy.post(B0, headers={"Authorization": f"Bearer {B}", "x-api-key": A})
    assert mixed.cache == "MISS"


async def test_a_tag_is_its_tenants_and_its_end_is_nobody_elses(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings=two())
    for key in (A, B):
        await post(proxy, B0, key, x_samewise_tags="batch")
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    running = [asyncio.create_task(post(proxy, prompt("slow"), key, x_samewise_tags="batch")) for key in (A, B)]
    await mb.arrived(4)
    ending = {"scope": "tag", "value": "batch", "tenant": "a"}
    assert (await proxy.admin("POST", "/invalidate", {**ending, "dry_run": True}))["matched"] == 1
    await proxy.admin("POST", "/invalidate", ending)
    again = [asyncio.create_task(post(proxy, prompt("slow"), key, x_samewise_tags="batch")) for key in (A, B)]
    await mb.arrived(5)
    gate.set()
    assert [(await each).cache for each in running] == ["MISS", "MISS"]
    first, second = [(await each).cache for each in again]
    assert first == "MISS" and second in {"COALESCED", "HIT"} and mb.count == 5
    assert [(await post(proxy, B0, key, x_samewise_tags="batch")).cache for key in (A, B)] == ["MISS", "HIT"]
    assert [(await post(proxy, prompt("slow"), key)).cache for key in (A, B)] == ["HIT", "HIT"]
    await proxy.admin("POST", "/invalidate", {"scope": "tag", "value": "batch"})
    assert [(await post(proxy, B0, key)).cache for key in (A, B)] == ["MISS", "MISS"]
    refused = await proxy.request(
        "POST", "/samewise/v1/invalidate", body={"scope": "model", "value": "m", "tenant": "a"}, admin=True
    )
    assert (refused.status, refused.json()["error"]["param"]) == (400, "tenant")


async def test_tenants_of_one_group_share_entries_and_fetches(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(
        settings={
            "auth.keys": [
                {"tenant": "a", "sha256": sha(A), "share": "team"},
                {"tenant": "b", "sha256": sha(B), "share": "team"},
                {"tenant": "team", "sha256": sha("c")},
            ]
        }
    )
    first, second = await post(proxy, B0, A), await post(proxy, B0, B)
    assert (first.cache, second.cache) == ("MISS", "HIT")
    assert first.body == second.body
    assert first.key == second.key
    assert (await post(proxy, B0, "c")).cache == "MISS"


async def test_two_namespaces_on_one_redis_share_nothing(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    settings = {"store.url": redis_server.url, "store.memory": 0}
    staging = await make_proxy(settings={**settings, "store.namespace": "staging"})
    live = await make_proxy(settings={**settings, "store.namespace": "live"})
    await staging.post(B0)
    assert (await live.post(B0)).cache == "MISS"
    await staging.admin("POST", "/invalidate", {"scope": "all"})
    assert (await staging.post(B0)).cache == "MISS"
    assert (await live.post(B0)).cache == "HIT"


async def test_without_keys_holders_of_another_credential_are_another_tenant(proxy: Proxy, mb: MockBackend) -> None:
    warm = await post(proxy, B0, "sk-one")
    assert (await post(proxy, B0, "sk-other")).cache == "MISS"
    assert (await post(proxy, B0, None)).cache == "MISS"
    assert (await post(proxy, B0, "sk-one")).body == warm.body
    assert mb.received[0].headers["authorization"] == "Bearer sk-one"


# --- who may ask --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer nobody"},
        {"Authorization": "Bearer "},
        {"Authorization": A},
        {"Authorization": f"Basic {A}"},
        {"Authorization": f"Bearer {sha(A)}"},
        {"x-api-key": "nobody"},
        {"Authorization": f"Bearer {A.upper()}"},
    ],
    ids=str,
)
async def test_who_has_no_key_gets_no_hit_and_joins_no_fetch(
    make_proxy: MakeProxy, mb: MockBackend, headers: dict[str, str]
) -> None:
    proxy = await make_proxy(settings=two())
    await post(proxy, B0, A)
    await post(proxy, B0, A)
    gate = asyncio.Event()
    mb.always(Script(gate=gate))
    running = asyncio.create_task(post(proxy, prompt("running"), A))
    await mb.arrived(2)
    for body in (B0, prompt("running"), {**B0, "stream": True}, b"no json"):
        got = await proxy.post(body, headers=headers)
        assert (got.status, got.cache, got.reason) == (401, "ERROR", "unauthorized")
        assert got.headers["www-authenticate"].startswith("Bearer")
        assert got.json()["error"]["code"] == "invalid_api_key"
        assert got.key is None
    for path in ("/v1/models", "/tokenize", "//v1/models", "/v1/chat/completions/"):
        assert (await proxy.request("GET", path, headers=headers)).status == 401
    gate.set()
    await running
    assert mb.count == 2


async def test_every_way_to_send_a_key_names_the_same_tenant(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings=two())
    await post(proxy, B0, A)
    for headers in ({"x-api-key": A}, {"api-key": A}, {"authorization": f"bearer  {A}"}):
        assert (await proxy.post(B0, headers=headers)).cache == "HIT"


async def test_a_key_is_let_in_for_its_models_alone(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings=two(models=["m-small", "m-x*"]))
    assert (await post(proxy, {**B0, "model": "m-small"}, A)).status == 200
    for path, body in (
        ("/v1/chat/completions", B0),
        ("/v1/audio/speech", {"model": "m", "input": "hi"}),
        ("/invocations", B0),
        ("/v1/images/generations", {"prompt": "no model"}),
    ):
        got = await proxy.request("POST", path, body=body, headers={"Authorization": f"Bearer {A}"})
        assert (got.status, got.json()["error"]["code"]) == (403, "model_not_allowed"), path
    assert mb.count == 1
    listed = await proxy.request("GET", "/v1/models", headers={"Authorization": f"Bearer {A}"})
    assert (listed.status, listed.headers["content-type"].partition(";")[0]) == (200, "application/json")
    assert [model["id"] for model in listed.json()["data"]] == ["m-small", "m-x"]
    one = await proxy.request("GET", "/v1/models/m-large", headers={"Authorization": f"Bearer {A}"})
    assert (one.status, one.json()["error"]["code"]) == (403, "model_not_allowed")


async def test_a_key_that_asks_too_often_waits_hits_included(make_proxy: MakeProxy, mb: MockBackend) -> None:
    proxy = await make_proxy(settings=two(per_minute=2))
    statuses = [await post(proxy, B0, A) for _ in range(4)]
    assert [answer.status for answer in statuses] == [200, 200, 429, 429]
    assert [answer.cache for answer in statuses] == ["MISS", "HIT", "ERROR", "ERROR"]
    assert statuses[2].reason == "rate-limited"
    assert 1 <= int(statuses[2].headers["retry-after"]) <= 30
    assert statuses[2].json()["error"]["type"] == "rate_limit_error"
    assert (await post(proxy, B0, B)).status == 200


# --- keys change --------------------------------------------------------------------------------------


async def test_a_revoked_key_is_refused_at_once_hits_included_and_stays_so(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    settings = {**two(), "store.url": redis_server.url}
    proxy, other = await make_proxy(settings=settings), await make_proxy(settings=settings)
    for each in (proxy, other):
        for _ in range(4):
            await post(each, B0, A)
        assert (await post(each, B0, A)).cache == "HIT"
    assert await proxy.admin("DELETE", f"/keys/{sha(A)[:12]}") == {"revoked": sha(A)[:12]}
    assert (await post(proxy, B0, A)).status == 401

    async def heard() -> bool:
        return (await post(other, B0, A)).status == 401

    await soon(heard)
    assert (await post(proxy, B0, B)).status == 200
    listed = {item["tenant"]: item for item in (await proxy.admin("GET", "/keys"))["items"]}
    assert (listed["a"]["revoked"], listed["b"]["revoked"]) == (True, False)
    assert sha(A) not in json.dumps(listed)
    await proxy.restart()
    assert (await post(proxy, B0, A)).status == 401


async def test_revoking_the_last_key_opens_nothing(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"auth.keys": [{"tenant": "a", "sha256": sha(A)}]})
    await proxy.admin("DELETE", f"/keys/{sha(A)}")
    for key in (A, None, "x"):
        assert (await post(proxy, B0, key)).status == 401


async def test_a_revocation_that_the_store_does_not_take_says_so(
    make_proxy: MakeProxy, redis_server: RedisServer
) -> None:
    proxy = await make_proxy(settings={**two(), "store.url": redis_server.url})
    redis_server.kill()
    got = await proxy.request("DELETE", f"/samewise/v1/keys/{sha(A)}", admin=True)
    assert got.status == 503
    for name, status in (("abc", 400), ("0" * 12, 404), ("zz" * 32, 400)):
        assert (await proxy.request("DELETE", f"/samewise/v1/keys/{name}", admin=True)).status == status


async def test_keys_of_a_file_come_and_go_without_a_restart(make_proxy: MakeProxy, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"

    def write(text: str) -> None:
        fresh = tmp_path / "fresh.toml"
        fresh.write_text(text)
        os.replace(fresh, file)  # noqa: PTH105

    one = f'keys = [{{ tenant = "a", sha256 = "{sha(A)}" }}]'
    write(one)
    proxy = await make_proxy(settings={"auth.file": str(file)})
    for _ in range(3):
        await post(proxy, B0, A)
    assert (await post(proxy, B0, A)).cache == "HIT"
    assert (await post(proxy, B0, B)).status == 401
    write(f'keys = [{{ tenant = "b", sha256 = "{sha(B)}" }}]')

    async def changed() -> bool:
        return ((await post(proxy, B0, A)).status, (await post(proxy, B0, B)).status) == (401, 200)

    await until(changed)
    write('keys = [{ tenant = "b" }]')

    async def told() -> bool:
        return any("keys of before stay in force" in line for line in proxy.log)

    await until(told)
    assert await proxy.metric("samewise_events_total", kind="keys-failed") == 1
    assert (await post(proxy, B0, B)).status == 200
    write("keys = []")

    async def closed() -> bool:
        return (await post(proxy, B0, B)).status == 401

    await until(closed)
    assert (await post(proxy, B0, None)).status == 401


# --- cookies and salts --------------------------------------------------------------------------------


async def test_cookies_and_challenges_reach_the_first_caller_alone(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer
) -> None:
    gate = asyncio.Event()
    private = {"Set-Cookie": "s=secret-cookie", "Authorization-Info": "secret-info", "WWW-Authenticate": "secret-www"}
    mb.always(Script(headers={**private, "X-Kept": "yes"}, gate=gate))
    proxy = await make_proxy(settings={"store.url": redis_server.url, "store.memory": 0})
    for stream in (False, True):
        gate.clear()
        body = {**prompt(f"stream {stream}"), "stream": stream}
        before = mb.count
        asking = [asyncio.create_task(proxy.post(body)) for _ in range(4)]
        await mb.arrived(before + 1)
        await proxy.waits(4)
        gate.set()
        answers = [*await asyncio.gather(*asking), await proxy.post(body)]
        assert sorted(str(answer.cache) for answer in answers) == ["COALESCED"] * 3 + ["HIT", "MISS"]
        for answer in answers:
            assert answer.headers["x-kept"] == "yes"
            given = {name for name in private if name in answer.headers}
            assert given == set() or answer.cache == "MISS"
        name = f"samewise:default:e:{{{answers[0].key}}}"

        async def there(name: str = name) -> bool:
            return redis_server.command("EXISTS", name) == b":1\r\n"

        await until(there)
        data = readable(redis_server.command("GET", name))
        assert b"X-Kept".lower() in data
        assert b"secret-" not in data


async def test_cache_salts_separate_entries_and_reach_the_upstream_untouched(proxy: Proxy, mb: MockBackend) -> None:
    for number, more in enumerate(({"cache_salt": "u1"}, {"cache_salt": "u2"}, {}), 1):
        body = {**B0, **more}
        assert (await proxy.post(body)).cache == "MISS"
        assert (await proxy.post(body)).cache == "HIT"
        assert mb.count == number
        assert mb.received[-1].body == body
    mb.when('"cache_salt": ""', Script(status=400, body={"error": {"message": "cache_salt must not be empty"}}))
    for _ in range(2):
        got = await proxy.post({**B0, "cache_salt": ""})
        assert (got.status, got.json()["error"]["message"]) == (400, "cache_salt must not be empty")


async def test_tenants_share_no_prefix_on_engines_that_can_tell_them_apart(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    mb.become("b" * 32, engine="vllm")
    proxy = await make_proxy(settings=two())
    for key in (A, B):
        assert (await post(proxy, B0, key)).cache == "MISS"
        assert (await post(proxy, {**B0, "stream": True}, key)).cache == "HIT"
        await post(proxy, {**B0, "temperature": 1.0, "seed": None}, key)
        await post(proxy, {**prompt("streamed"), "stream": True}, key)
    salts = [each.body.get("cache_salt") for each in mb.received]
    assert len(set(salts[:3])) == len(set(salts[3:])) == 1
    assert salts[0] != salts[3]
    assert all(salt and len(salt) >= 16 for salt in salts)
    own = {**B0, "cache_salt": "mine"}
    await post(proxy, own, A)
    assert mb.received[-1].body["cache_salt"] == "mine"
    assert mb.received[-1].raw.count(b"cache_salt") == 1
    broken = await proxy.request(
        "POST", "/v1/chat/completions", body=b'{"messages": []}', headers={"Authorization": f"Bearer {A}"}
    )
    assert broken.status == 200
    assert mb.received[-1].raw == b'{"messages": []}'


async def test_salts_change_no_key_and_can_be_turned_off(make_proxy: MakeProxy, mb: MockBackend) -> None:
    mb.become("b" * 32, engine="vllm")
    salted, plain = await make_proxy(settings=two()), await make_proxy(settings={**two(), "auth.salt": False})
    assert (await post(salted, B0, A)).key == (await post(plain, B0, A)).key
    assert "cache_salt" in mb.received[0].body
    assert mb.received[1].raw == mb.received[0].raw.partition(b',"cache_salt"')[0] + b"}"


# --- the admin port -----------------------------------------------------------------------------------

PATHS = [
    ("GET", "/samewise/v1/status"),
    ("GET", "/samewise/v1/config"),
    ("GET", "/samewise/v1/events"),
    ("GET", "/samewise/v1/keys"),
    ("GET", "/samewise/v1/profiles"),
    ("GET", "/samewise/v1/environments"),
    ("GET", "/samewise/v1/export"),
    ("GET", "/metrics"),
    ("POST", "/samewise/v1/import"),
    ("POST", "/samewise/v1/explain"),
    ("POST", "/samewise/v1/invalidate"),
    ("POST", "//samewise/v1/invalidate"),
    ("POST", "/samewise/v1/invalidate/"),
    ("POST", "/%73amewise/v1/invalidate"),
    ("POST", "/healthz/../samewise/v1/invalidate"),
    ("DELETE", "/samewise/v1/entries/{key}"),
    ("HEAD", "/samewise/v1/entries/{key}"),
    ("GET", "/samewise/v1/entries/{key}?full"),
    ("OPTIONS", "/samewise/v1/entries/{key}"),
    ("PUT", "/samewise/v1/profiles/default"),
    ("DELETE", "/samewise/v1/keys/" + "0" * 64),
]


async def test_no_admin_path_opens_without_the_token_whatever_its_spelling(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={**two(), "admin.token": "right-token"})
    warm = await post(proxy, B0, A)
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": f"Bearer {A}"},
        {"Authorization": "Bearer "},
        {"Authorization": "right-token"},
        {"Authorization": "Basic right-token"},
        {"Authorization": "Bearer right-tokem"},
    ]
    for method, path in PATHS:
        where = path.format(key=warm.key)
        for headers in wrong:
            got = await proxy.request(method, where, body=b'{"scope":"all"}', headers=headers, admin=True)
            assert got.status in {401, 403, 404, 429}, (method, where, headers)
        sign = "&" if "?" in where else "?"
        got = await proxy.request(method, f"{where}{sign}token=right-token", body=b"{}", admin=True)
        assert got.status in {401, 403, 404, 429}
    assert (await post(proxy, B0, A)).cache == "HIT"
    right = {"Authorization": "Bearer right-token"}
    status = await proxy.admin("GET", "/status", headers=right)
    metrics = (await proxy.request("GET", "/metrics", headers=right, admin=True)).body.decode()
    shown = json.dumps([status, await proxy.admin("GET", "/config", headers=right)]) + metrics
    for hidden in (A, sha(A), "right-token", '"hi"', "nonce"):
        assert hidden not in shown


async def test_wrong_tokens_are_slowed_and_the_right_one_is_let_in(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"admin.token": "right-token"})
    bad = {"Authorization": "Bearer wrong"}
    statuses = [(await proxy.request("GET", "/samewise/v1/status", headers=bad, admin=True)) for _ in range(15)]
    assert [got.status for got in statuses[:10]] == [401] * 10
    assert {got.status for got in statuses[11:]} == {429}
    assert int(statuses[-1].headers["retry-after"]) >= 1
    await proxy.admin("GET", "/status", headers={"Authorization": "Bearer right-token"})

    async def logged() -> bool:
        lines = [line for line in proxy.log if "admin-refused" in line]
        return 10 <= len(lines) <= 11

    await until(logged)


async def test_another_site_reaches_nothing(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    for headers in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
    ):
        assert (await proxy.request("GET", "/samewise/v1/status", headers=headers, admin=True)).status == 403
    cross = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    got = await proxy.request("POST", "/samewise/v1/invalidate", body=b'{"scope":"all"}', headers=cross, admin=True)
    assert got.status == 403


async def test_what_operators_change_and_read_is_in_the_log_with_their_name(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"admin.token": "right-token"})
    warm = await proxy.post(B0)
    right = {"Authorization": "Bearer right-token", "x-samewise-operator": "alice"}
    await proxy.request("GET", f"/samewise/v1/entries/{warm.key}?full", headers=right, admin=True)
    await proxy.admin("POST", "/invalidate", {"scope": "model", "value": "m", "reason": "because"}, headers=right)

    async def logged() -> bool:
        text = "".join(proxy.log)
        return all(
            any(word in line and "by=alice@127.0.0.1" in line for line in text.splitlines())
            for word in (f"path=/samewise/v1/entries/{warm.key}", "path=/samewise/v1/invalidate", "because")
        )

    await until(logged)


async def test_prompts_are_listed_to_nobody_who_did_not_ask_for_them(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    body = prompt("words-of-a-prompt")
    warm = await proxy.post(body)
    shown = await proxy.admin("GET", f"/entries/{warm.key}")
    assert "words-of-a-prompt" not in json.dumps(shown)
    assert "nonce" not in json.dumps(shown)
    assert "words-of-a-prompt" in json.dumps(await proxy.admin("GET", f"/entries/{warm.key}?full"))


# --- secrets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["redis", "sqlite"])
async def test_a_credential_is_written_down_nowhere(
    make_proxy: MakeProxy, mb: MockBackend, redis_server: RedisServer, tmp_path: Path, store: str
) -> None:
    mb.text = echo
    secret = "sk-very-secret-credential"
    url = redis_server.url if store == "redis" else f"sqlite:///{tmp_path / 's.db'}"
    proxy = await make_proxy(settings={"store.url": url, "telemetry.log_level": "debug"})
    for headers in ({"Authorization": f"Bearer {secret}"}, {"x-api-key": secret}, {"api-key": secret}):
        first = await proxy.post(B0, headers=headers)
        assert (await proxy.post(B0, headers=headers)).body == first.body
    assert mb.received[0].headers["authorization"] == f"Bearer {secret}"
    mb.always(Script(status=500))
    await proxy.post(prompt("failing"), headers={"Authorization": f"Bearer {secret}"})
    await proxy.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer %s\r\nX: \x00\r\n\r\n" % secret.encode()
    )
    export = (await proxy.request("GET", "/samewise/v1/export", admin=True)).body.decode()
    metrics = (await proxy.request("GET", "/metrics", admin=True)).body.decode()
    status = json.dumps([await proxy.admin("GET", "/status"), await proxy.admin("GET", "/config")])
    assert await proxy.stop() == 0
    if store == "redis":
        names = [name for name in redis_server.command("KEYS", "*").split(b"\r\n") if name.startswith(b"samewise")]
        written = b"".join(redis_server.command("DUMP", name) for name in names)
        assert len(names) >= 3
    else:
        written = b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))
        with sqlite3.connect(tmp_path / "s.db") as database:
            written += "".join(database.iterdump()).encode()
    everything = "".join(proxy.log) + export + metrics + status
    assert secret not in everything
    assert secret.encode() not in written
    assert sha(secret).encode() not in written
    logging.getLogger(__name__).debug("%d bytes looked through", len(everything))
