"""Sampling profiles that change while proxies on one store answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cases.conftest import MakeProxy
from tests.cases.test_explain import samewise, saved
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import Answered, Proxy, soon, until
from tests.support.redis import RedisServer, redis_server  # noqa: F401

VALUES = ("temperature", "top_p", "presence_penalty")


def told(body: dict[str, Any], _: int) -> str:
    """The answer of a backend that says what it was asked to sample with."""
    return json.dumps([body.get(name) for name in VALUES])


def asking(text: str, **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "seed": 7, "max_tokens": 16, **members}


def snapshot(answer: Answered) -> str:
    return answer.headers["x-samewise-snapshot"]


def values(temperature: float) -> dict[str, float]:
    return {"temperature": temperature}


async def put(proxy: Proxy, settings: dict[str, Any], name: str = "default", **more: Any) -> dict[str, Any]:
    made = await proxy.admin("PUT", f"/profiles/{name}", {"values": settings, **more})
    assert isinstance(made, dict)
    return made


async def seen(proxies: Sequence[Proxy], version: int) -> None:
    """Return when every proxy admits requests with this version, which is soon. Raises TimeoutError."""

    async def one(proxy: Proxy) -> bool:
        return snapshot(await proxy.post(asking("which version?"))) == f"default@{version}"

    await asyncio.gather(*(soon(lambda proxy=proxy: one(proxy)) for proxy in proxies))


@pytest_asyncio.fixture(loop_scope="session")
async def several(
    make_proxy: MakeProxy,
    mb: MockBackend,
    redis_server: RedisServer,  # noqa: F811
) -> AsyncIterator[list[Proxy]]:
    """Four proxies on one Redis."""
    mb.text = told
    settings = {"store.url": redis_server.url}
    yield list(await asyncio.gather(*(make_proxy(settings=settings) for _ in range(4))))


# --- across proxies ---------------------------------------------------------------------------------------


@pytest.mark.redis
async def test_every_proxy_has_an_update_within_a_second(several: list[Proxy]) -> None:
    for number, proxy in enumerate(several):
        made = await put(proxy, values(0.1 * (number + 1)))
        await seen(several, made["active"])


@pytest.mark.redis
async def test_versions_outlive_all_proxies(several: list[Proxy], mb: MockBackend) -> None:
    made = await put(several[0], values(0.25), reason="because")
    first = await several[0].post(asking("x"))
    for proxy in several:
        await proxy.stop()
    for proxy in several:
        await proxy.start()
        profile = await proxy.admin("GET", "/profiles/default")
        assert profile["active"] == made["active"]
        assert profile["versions"] == made["versions"]
        again = await proxy.post(asking("x"))
        assert (again.cache, snapshot(again), again.body) == ("HIT", snapshot(first), first.body)
    assert mb.count == 1
    last = made["versions"][-1]
    assert (last["values"], last["reason"], len(last["hash"])) == (values(0.25), "because", 64)


async def test_versions_outlive_a_proxy_on_sqlite(make_proxy: MakeProxy, tmp_path: Path) -> None:
    proxy = await make_proxy(settings={"store.url": f"sqlite:///{tmp_path / 'store.db'}"})
    made = await put(proxy, values(0.25))
    await proxy.restart()
    assert (await proxy.admin("GET", "/profiles/default"))["versions"] == made["versions"]


@pytest.mark.redis
async def test_updates_of_two_proxies_at_once_get_numbers_of_their_own(several: list[Proxy]) -> None:
    await asyncio.gather(*(put(several[number % 4], values(number / 100)) for number in range(1, 41)))
    await seen(several, 41)
    profiles = [await proxy.admin("GET", "/profiles/default") for proxy in several]
    assert [each["versions"] for each in profiles] == [profiles[0]["versions"]] * 4
    assert [version["number"] for version in profiles[0]["versions"]] == list(range(1, 42))
    assert {version["values"].get("temperature") for version in profiles[0]["versions"][1:]} == {
        number / 100 for number in range(1, 41)
    }


# --- one request, one snapshot ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_what_runs_keeps_its_snapshot_and_what_comes_has_the_next(
    proxy: Proxy, mb: MockBackend, stream: bool
) -> None:
    mb.text = told
    old = (await put(proxy, values(0.7)))["active"]
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    running = asyncio.create_task(proxy.post(asking("x", stream=stream)))
    await mb.arrived(1)
    new = (await put(proxy, values(1.2)))["active"]
    later = await proxy.post(asking("x", stream=stream))
    gate.set()
    first = await running
    assert (snapshot(first), snapshot(later)) == (f"default@{old}", f"default@{new}")
    assert [json.loads(answer.text)[0] for answer in (first, later)] == [0.7, 1.2]
    assert first.key != later.key
    for answer, temperature in ((first, 0.7), (later, 1.2)):
        entry = await proxy.admin("GET", f"/entries/{answer.key}?full")
        assert entry["snapshot"] == snapshot(answer)
        assert entry["request"]["temperature"] == temperature


async def test_what_a_request_says_wins_over_the_profile(proxy: Proxy, mb: MockBackend) -> None:
    mb.text = told
    await put(proxy, {"temperature": 0.7, "top_p": 0.9})
    answer = await proxy.post(asking("x", temperature=0.3))
    assert json.loads(answer.text)[:2] == [0.3, 0.9]
    first = await proxy.post(asking("y", temperature=0))
    await put(proxy, {"temperature": 1.1, "top_p": 0.9})
    assert (await proxy.post(asking("y", temperature=0))).body == first.body


async def test_a_rollback_revives_the_entries_of_the_old_version(proxy: Proxy, mb: MockBackend) -> None:
    await put(proxy, values(0.7))
    old = await proxy.post(asking("x"))
    await put(proxy, values(1.2))
    assert (await proxy.post(asking("x"))).cache == "MISS"
    back = await proxy.admin("POST", "/profiles/default/rollback", {"reason": "worse"})
    again = await proxy.post(asking("x"))
    assert (again.cache, again.body, snapshot(again)) == ("HIT", old.body, f"default@{back['active']}")
    assert mb.count == 2


async def test_a_profile_fills_only_the_models_that_it_matches(proxy: Proxy, mb: MockBackend) -> None:
    mb.text = told
    await put(proxy, values(0.5), name="small", match="m-small*")
    small = await proxy.post({**asking("x"), "model": "m-small"})
    other = await proxy.post(asking("x"))
    assert (snapshot(small), json.loads(small.text)[0]) == ("small@1", 0.5)
    assert snapshot(other).startswith("default@")


# --- validation -------------------------------------------------------------------------------------------

WRONG = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "warm"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 2.5),
    ("min_p", 1.5),
    ("repetition_penalty", 0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("seed", 7.5),
    ("seed", 2**63),
    ("max_tokens", 0),
    ("n", 0),
    ("stop", [""]),
    ("logit_bias", {"x": 1}),
    ("temprature", 0.5),
    ("model", "other"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
@pytest.mark.parametrize("way", ["", "/canary"])
async def test_a_wrong_value_is_refused_with_its_fields_name(refusing: Proxy, field: str, value: Any, way: str) -> None:
    before = await refusing.admin("GET", "/profiles/default")
    body = {"values": {"top_p": 0.5, field: value}, **({"percent": 10} if way else {})}
    method = "POST" if way else "PUT"
    answer = await refusing.request(method, f"/samewise/v1/profiles/default{way}", body=body, admin=True)
    error = answer.json()["error"]
    assert answer.status == 400
    assert error["param"] == f"values.{field}"
    assert error["message"].startswith(f"{field} should be ")
    assert await refusing.admin("GET", "/profiles/default") == before


@pytest.mark.parametrize("percent", [0, -1, 101, "10", None, True])
async def test_a_wrong_percentage_is_refused(refusing: Proxy, percent: Any) -> None:
    body = {"values": values(0.5), "percent": percent}
    answer = await refusing.request("POST", "/samewise/v1/profiles/default/canary", body=body, admin=True)
    assert (answer.status, answer.json()["error"]["param"]) == (400, "percent")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    async with MockBackend() as mb, Proxy(tmp_path_factory.mktemp("refusing"), mb.url) as proxy:
        await put(proxy, values(0.7))
        yield proxy


# --- canaries ---------------------------------------------------------------------------------------------


async def sides(proxies: Sequence[Proxy], texts: Sequence[str], **members: Any) -> list[str]:
    """The snapshot of each text's request, asked of the proxies in turn."""
    answers = await asyncio.gather(
        *(proxies[at % len(proxies)].post(asking(text, **members)) for at, text in enumerate(texts))
    )
    return [snapshot(answer) for answer in answers]


async def canary(proxy: Proxy, percent: float) -> int:
    body = {"values": values(1.2), "percent": percent}
    made = await proxy.admin("POST", "/profiles/default/canary", body)
    return int(made["canary"]["version"])


@pytest.mark.redis
async def test_the_side_of_a_request_is_the_same_everywhere_and_only_grows(several: list[Proxy]) -> None:
    active = (await put(several[0], values(0.7)))["active"]
    texts = [f"question {number}" for number in range(400)]
    before: set[str] = set()
    for percent in (10, 30, 60, 100):
        version = await canary(several[0], percent)

        async def everywhere(version: int = version) -> bool:
            shown = [await proxy.admin("GET", "/profiles/default") for proxy in several]
            return all(each["canary"] and each["canary"]["version"] == version for each in shown)

        await soon(everywhere)
        first = await sides(several, texts)
        second = await sides(several[1:], texts, stream=True, user="somebody", top_p=0.5)
        assert first == second
        assert set(first) <= {f"default@{active}", f"default@{version}"}
        there = {text for text, side in zip(texts, first, strict=True) if side == f"default@{version}"}
        assert before <= there
        assert abs(len(there) / len(texts) - percent / 100) < 0.1
        before = there
    assert len(before) == len(texts)


@pytest.mark.redis
async def test_a_promoted_canary_is_for_all_and_a_rolled_back_one_for_none(several: list[Proxy]) -> None:
    active = (await put(several[0], values(0.7)))["active"]
    texts = [f"question {number}" for number in range(40)]
    version = await canary(several[0], 50)
    await several[0].admin("POST", "/profiles/default/rollback", {})
    await seen(several, active)
    assert set(await sides(several, texts)) == {f"default@{active}"}
    version = await canary(several[0], 50)
    await several[0].admin("POST", "/profiles/default/promote", {})
    await seen(several, version)
    assert set(await sides(several, texts)) == {f"default@{version}"}


async def test_nothing_to_promote_or_to_roll_back_is_told(make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    for way, code in (("promote", "no_canary"), ("rollback", "nothing_to_roll_back")):
        answer = await proxy.request("POST", f"/samewise/v1/profiles/default/{way}", body={}, admin=True)
        assert (answer.status, answer.json()["error"]["code"]) == (409, code)


# --- the command ------------------------------------------------------------------------------------------


async def test_the_command_changes_what_later_requests_are_sampled_with(
    proxy: Proxy, mb: MockBackend, tmp_path: Path
) -> None:
    mb.text = told
    warm = saved(tmp_path, "warm.json", values(1.2))
    (tmp_path / "cold.toml").write_text("temperature = 0.2\n", encoding="utf-8")
    cold = str(tmp_path / "cold.toml")
    assert (await samewise(proxy, "profiles", "set", "default", cold, "--reason", "calm"))[0] == 0
    assert json.loads((await proxy.post(asking("x"))).text)[0] == 0.2
    assert (await samewise(proxy, "profiles", "canary", "default", warm, "--percent", "100"))[0] == 0
    assert json.loads((await proxy.post(asking("x"))).text)[0] == 1.2
    assert (await samewise(proxy, "profiles", "rollback", "default"))[0] == 0
    assert (await proxy.post(asking("x"))).cache == "HIT"
    assert (await samewise(proxy, "profiles", "promote", "default"))[0] == 1
    code, out, _ = await samewise(proxy, "profiles", "show", "default", "--json")
    shown = json.loads(out)
    assert (code, shown["active"], shown["versions"][1]["reason"]) == (0, 2, "calm")
    code, out, _ = await samewise(proxy, "profiles", "list", "--json")
    assert (code, [item["name"] for item in json.loads(out)["items"]]) == (0, ["default"])
    code, _, err = await samewise(proxy, "profiles", "set", "default", saved(tmp_path, "w.json", {"top_p": 3}))
    assert code == 2
    assert "top_p should be a number" in err
    assert (await samewise(proxy, "profiles", "show", "none"))[0] == 1


async def test_what_was_admitted_keeps_its_snapshot_when_it_is_asked_elsewhere_and_when_it_is_verified(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    async with MockBackend() as other:
        mb.text = other.text = told
        settings = {"routing.hedge": "3s", "routing.strategy": "round-robin"}
        proxy = await make_proxy(mb.url, other.url, settings=settings)
        admitted = await put(proxy, values(0.3))
        stuck = [Script(gate=asyncio.Event())]
        for backend in (mb, other):
            backend.rules.append(lambda _: stuck.pop() if stuck else None)

        async def under_way() -> bool:
            return not stuck

        answering = asyncio.create_task(proxy.post(asking("x")))
        await until(under_way)
        later = await put(proxy, values(0.9))
        answer = await answering
        assert (answer.cache, snapshot(answer)) == ("MISS", f"default@{admitted['active']}")
        assert [len(backend.received) for backend in (mb, other)] == [1, 1]

        recomputed = await proxy.admin("POST", "/verify", {"keys": [answer.key]})
        assert [row["verdict"] for row in recomputed["items"]] == ["match"]
        asked = [received.body["temperature"] for backend in (mb, other) for received in backend.received]
        assert (len(asked), set(asked)) == (3, {0.3})
        anew = await proxy.post(asking("x"))
        assert (anew.cache, snapshot(anew)) == ("MISS", f"default@{later['active']}")
        assert json.loads(anew.text)[0] == 0.9
