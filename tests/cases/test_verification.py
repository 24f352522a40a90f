"""Verification through the real proxy: what is found, what is not, and what users notice of it (nothing)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend, Received, Script, sse
from tests.support.patience import ENOUGH
from tests.support.proxy import B0, Answered, Proxy, until

RATE: dict[str, Any] = {"verify.rate": 1.0, "verify.concurrency": 4}
VERDICTS = ("match", "near_tie", "divergent", "inconclusive")
Text = Callable[[dict[str, Any], int], str]


def ask(prompt: str, **members: Any) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": prompt}], **members}


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"])


def truth(body: dict[str, Any], number: int) -> str:
    return f"the answer to {prompt_of(body)}"


def wrong_about(*prompts: str) -> Text:
    return lambda body, number: truth(body, number) + (" is no" if prompt_of(body) in prompts else "")


async def verdicts(proxy: Proxy) -> dict[str, int]:
    return {each: int(await proxy.metric("samewise_verifications_total", verdict=each)) for each in VERDICTS}


async def verified(proxy: Proxy, count: int) -> dict[str, int]:
    async def done() -> bool:
        return sum((await verdicts(proxy)).values()) >= count

    await until(done)
    return await verdicts(proxy)


async def warm(proxy: Proxy, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        assert (await proxy.post(body)).cache == "MISS"


async def hit(proxy: Proxy, *bodies: dict[str, Any]) -> list[Answered]:
    answers = [await proxy.post(body) for body in bodies]
    assert {answer.cache for answer in answers} <= {"HIT"}
    return answers


async def listed(proxy: Proxy) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await proxy.admin("GET", "/divergences?limit=1000"))["items"]
    return items


async def test_of_200_answers_exactly_the_4_that_changed_are_divergent(mb: MockBackend, make_proxy: MakeProxy) -> None:
    mb.text = truth
    proxy = await make_proxy(settings=RATE)
    bodies = [ask(f"question {number}") for number in range(200)]
    await warm(proxy, *bodies)
    bad = [bodies[number] for number in (3, 50, 77, 199)]
    mb.text = wrong_about(*(prompt_of(body) for body in bad))
    answers = await hit(proxy, *bodies)
    assert await verified(proxy, 200) == {"match": 196, "near_tie": 0, "divergent": 4, "inconclusive": 0}
    found = await listed(proxy)
    keys = {answer.key for answer, body in zip(answers, bodies, strict=True) if body in bad}
    assert {row["key"] for row in found} == keys
    wanted = {"id", "key", "verdict", "position", "model", "environment", "instance", "at"}
    assert all(wanted <= row.keys() for row in found)
    assert [row["at"] for row in found] == sorted((row["at"] for row in found), reverse=True)
    told = await proxy.admin("GET", f"/divergences/{found[0]['id']}")
    assert told["position"] == len(told["cached"]["text"])
    assert told["recomputed"]["text"] == told["cached"]["text"] + " is no"
    assert len(told["candidates"]) == 2
    assert (await hit(proxy, bad[0]))[0].text == truth(bad[0], 0)


async def test_a_near_tie_is_called_one_and_raises_no_alarm(mb: MockBackend, make_proxy: MakeProxy) -> None:
    """The two candidates are 0.01 nats apart in the recomputation; the recorded answer tells no log-probabilities."""
    hooked: list[Any] = []
    async with hook_server(hooked) as hook:
        proxy = await make_proxy(settings={**RATE, "verify.hook": hook, "verify.action": "evict"})
        bodies = [ask(f"near {number}") for number in range(12)]
        mb.text = lambda body, number: "the cat"
        await warm(proxy, *bodies)
        mb.rules.insert(0, lambda received: Script(body=near(received)))
        await hit(proxy, *bodies)
        assert await verified(proxy, 12) == {"match": 0, "near_tie": 12, "divergent": 0, "inconclusive": 0}
        told = await proxy.admin("GET", f"/divergences/{(await listed(proxy))[0]['id']}")
        assert told["verdict"] == "near_tie"
        assert told["gap"] == pytest.approx(0.01)
        assert [each["token"] for each in told["candidates"]] == [" cat", " dog"]
        assert [each["recomputed_logprob"] for each in told["candidates"]] == [-0.70, -0.69]
        await hit(proxy, *bodies)
        (level,) = (await proxy.admin("GET", "/status"))["consistency"].values()
        assert (level["state"], level["ratio"]) == ("ok", 1.0)
        assert hooked == []


def near(received: Received) -> dict[str, Any]:
    asked = bool(received.body.get("logprobs"))
    content = [
        {"token": "the", "logprob": -0.1, "top_logprobs": [{"token": "the", "logprob": -0.1}]},
        {
            "token": " dog",
            "logprob": -0.69,
            "top_logprobs": [{"token": " dog", "logprob": -0.69}, {"token": " cat", "logprob": -0.70}],
        },
    ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "the dog"},
        "finish_reason": "stop",
        **({"logprobs": {"content": content}} if asked else {}),
    }
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": {}}


def hook_server(got: list[Any]) -> Any:
    """A URL that takes what a hook says."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def serve() -> Any:
        async def take(request: web.Request) -> web.Response:
            got.append(await request.json())
            return web.Response(status=204)

        app = web.Application()
        app.router.add_post("/hook", take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}/hook"
        finally:
            await runner.cleanup()

    return serve()


async def test_what_batching_changes_is_told_and_what_was_served_stays(mb: MockBackend, make_proxy: MakeProxy) -> None:
    """One answer alone, another among others: first write wins, and hits never alternate."""
    proxy = await make_proxy(settings=RATE)
    mb.text = lambda body, number: f"{prompt_of(body)} alone"
    bodies = [ask(f"batch {number}") for number in range(20)]
    await warm(proxy, *bodies)
    mb.text = lambda body, number: f"{prompt_of(body)} batch"
    for _ in range(3):
        answers = await hit(proxy, *bodies)
        assert [answer.text for answer in answers] == [f"{prompt_of(body)} alone" for body in bodies]
    found = await verified(proxy, 20)
    assert found["divergent"] >= 20
    row = (await listed(proxy))[0]
    told = await proxy.admin("GET", f"/divergences/{row['id']}")
    assert told["cached"]["digest"] != told["recomputed"]["digest"]
    assert told["position"] == len(told["cached"]["text"]) - len("alone")
    assert {each["concurrency"] for each in told["runs"]} >= {told["cached"]["concurrency"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_differs_in_every_answer_is_no_divergence(
    mb: MockBackend, make_proxy: MakeProxy, stream: bool
) -> None:
    """Ids, times, fingerprints, tiers and ids of calls change; 200 recomputations."""
    proxy = await make_proxy(settings=RATE)
    numbers = iter(range(10_000))

    def fresh(received: Received) -> Script:
        number = next(numbers)
        call: dict[str, Any] = {"index": 0, "id": f"call-{number}", "type": "function"}
        call["function"] = {"name": "f", "arguments": ('{"a":1,"b":2}', '{"b": 2, "a": 1}')[number % 2]}
        base = {
            "id": f"id-{number}",
            "created": number,
            "model": "m",
            "system_fingerprint": f"fp-{number}",
            "service_tier": f"tier-{number}",
        }
        if not received.body.get("stream"):
            message = {"role": "assistant", "content": "said", "tool_calls": [call]}
            choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            return Script(body={**base, "object": "chat.completion", "choices": [choice]})
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": ""},
            *({"content": part} for part in ("sa", "id")),
            {},
        ]
        if number % 2:
            deltas[1:3] = [{"content": "said"}]
        deltas.insert(1, {"tool_calls": [call]})
        chunks = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}]}
            for delta in deltas
        ]
        return Script(sse=[*(sse(chunk) for chunk in chunks), b"data: [DONE]\n\n"])

    mb.rules.insert(0, fresh)
    bodies = [ask(f"ids {number}", stream=stream) for number in range(100)]
    await warm(proxy, *bodies)
    for done in (1, 2):
        await hit(proxy, *bodies)
        await verified(proxy, done * 100)
    assert await verdicts(proxy) == {"match": 200, "near_tie": 0, "divergent": 0, "inconclusive": 0}


async def test_recomputations_are_nobodys_answer_and_nobodys_hit(mb: MockBackend, make_proxy: MakeProxy) -> None:
    """Past the cache and past every shared fetch, in a prefix cache of its own."""
    proxy = await make_proxy(settings=RATE)
    mb.text = truth
    body = ask("alone")
    await warm(proxy, body)
    gate = asyncio.Event()
    mb.once(Script(gate=gate))
    answers = await asyncio.gather(*(proxy.post(body) for _ in range(20)))
    await mb.arrived(2)
    assert {answer.cache for answer in answers} == {"HIT"}
    more = await proxy.post(ask("another"))
    assert more.cache == "MISS"
    gate.set()
    await verified(proxy, 1)
    sent = [received.body for received in mb.received]
    assert "cache_salt" not in sent[0]
    recomputed = [body for body in sent if "cache_salt" in body]
    assert {key: value for key, value in recomputed[0].items() if key != "cache_salt"} == sent[0]
    assert await proxy.metric("samewise_requests_total", outcome="miss") == 2
    assert await proxy.metric("samewise_requests_total", outcome="hit") == 20
    assert await proxy.metric("samewise_tokens_total", kind="generated") == 2 * 18

    async def counted() -> bool:
        return await proxy.metric("samewise_tokens_total", kind="verified") == 18 * (mb.count - 2) > 0

    await until(counted)


async def test_agreements_are_counted_on_the_entry(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings=RATE)
    mb.text = truth
    body = ask("agrees")
    await warm(proxy, body)
    counted = []
    for done in range(1, 4):
        counted += [answer.headers["x-samewise-verified"] for answer in await hit(proxy, body)]
        await verified(proxy, done)
    assert counted == ["0", "1", "2"]


async def test_who_asks_past_the_cache_is_compared_with_the_entry(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"verify.rate": 0.000001, "verify.action": "evict"})
    mb.text = truth
    same, other = ask("same"), ask("other")
    await warm(proxy, same, other)
    mb.text = wrong_about("other")
    for body in (same, other):
        assert (await proxy.post(body, headers={"Cache-Control": "no-cache"})).cache == "REFRESH"
    assert await verified(proxy, 2) == {"match": 1, "near_tie": 0, "divergent": 1, "inconclusive": 0}
    answers = await hit(proxy, same, other)
    assert answers[1].text == "the answer to other is no"
    assert answers[0].headers["x-samewise-verified"] == "1"
    assert mb.count == 4 + 2


@pytest.mark.parametrize("action", ["flag", "evict", "replace", "quarantine"])
async def test_each_action_as_users_see_it(mb: MockBackend, make_proxy: MakeProxy, action: str) -> None:
    proxy = await make_proxy(settings={**RATE, "verify.action": action, "verify.release": 2})
    mb.text = truth
    body = ask("action")
    await warm(proxy, body)
    mb.text = wrong_about("action")
    await hit(proxy, body)
    assert (await verified(proxy, 1))["divergent"] == 1
    told = await proxy.post(body)
    match action:
        case "flag":
            assert (told.cache, told.text) == ("HIT", "the answer to action")
        case "evict":
            assert (told.cache, told.text) == ("MISS", "the answer to action is no")
        case "replace":
            assert (told.cache, told.text) == ("HIT", "the answer to action is no")
        case _:
            assert (told.cache, told.reason) == ("BYPASS", "quarantined")
            assert told.text == "the answer to action is no"
            kept = await proxy.post(body, headers={"Cache-Control": "only-if-cached"})
            assert (kept.status, kept.reason) == (504, "quarantined")
            mb.text = truth

            async def released() -> bool:
                return (await proxy.post(body)).cache == "HIT"

            await until(released)


async def test_the_wrong_one_of_three_is_named_within_200_and_drained(mb: MockBackend, make_proxy: MakeProxy) -> None:
    two_, three_ = (MockBackend(manifest={"info": {"instance": name}}) for name in ("two", "three"))
    async with two_ as two, three_ as three:
        urls = [each.url for each in (mb, two, three)]
        settings = {**RATE, "verify.on_floor": "drain", "routing.strategy": "round-robin"}
        proxy = await make_proxy(*urls, settings=settings)
        for each in (mb, three):
            each.text = truth
        two.text = lambda body, number: truth(body, number) + " is no"
        bodies = [ask(f"of three {number}") for number in range(66)]
        await warm(proxy, *bodies)
        await hit(proxy, *bodies)

        async def drained() -> bool:
            rows = (await proxy.admin("GET", "/upstreams"))["items"]
            return [row["url"] for row in rows if row["draining"]] == [two.url]

        await until(drained)
        assert sum((await verdicts(proxy)).values()) <= 200
        blamed = {row["instance"] for row in await listed(proxy) if row["verdict"] == "divergent"}
        assert blamed == {two.url}


@pytest.mark.parametrize(
    "script",
    [
        Script(status=429, headers={"Retry-After": "1"}),
        Script(status=503),
        Script(wire=b"", end="stall"),
        Script(wire=b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{", end="cut"),
        Script(sse=[b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n']),
    ],
    ids=["429", "503", "hangs", "cut", "truncated"],
)
async def test_an_upstream_that_fails_the_verifier_is_never_called_divergent(
    mb: MockBackend, make_proxy: MakeProxy, script: Script
) -> None:
    proxy = await make_proxy(settings={**RATE, "timeouts.first_byte": "3s"})
    mb.text = truth
    bodies = [ask(f"failing {number}") for number in range(30)]
    await warm(proxy, *bodies)
    mb.always(script)
    for _ in range(5):
        await hit(proxy, *bodies)
    await verified(proxy, 1)
    assert await verdicts(proxy) | {"inconclusive": 0} == dict.fromkeys(VERDICTS, 0)
    assert mb.count <= 30 + 4 * 3
    assert await listed(proxy) == []


@pytest.mark.parametrize("script", [Script(status=429), Script(wire=b"", end="stall")], ids=["429", "hangs"])
async def test_users_have_their_hits_while_the_verifier_is_refused(
    mb: MockBackend, make_proxy: MakeProxy, script: Script
) -> None:
    """At rate 1, before an upstream that refuses or never answers; `loadtest verifier` tells what users feel."""
    mb.text = truth
    bodies = [ask(f"refused {number}") for number in range(50)]
    proxy = await make_proxy(settings=RATE)
    await warm(proxy, *bodies)
    mb.always(script)
    before = mb.count
    assert {(await proxy.post(body)).cache for body in bodies * 4} == {"HIT"}
    async with asyncio.timeout(ENOUGH):
        await mb.arrived(before + 1)
    assert (await verdicts(proxy))["divergent"] == 0


async def test_a_backend_that_ignores_seeds_loses_its_consistency_and_its_cache(
    mb: MockBackend, make_proxy: MakeProxy
) -> None:
    """Random answers: the ratio falls to 0, the environment is paused, the hook is told once, another one is not."""
    hooked: list[Any] = []
    async with hook_server(hooked) as hook, MockBackend(manifest={"id": "b" * 32}) as other:
        other.models, mb.models = ["m-large"], ["m"]
        other.text = truth
        proxy = await make_proxy(
            mb.url, other.url, settings={**RATE, "verify.on_floor": "pause", "verify.hook": hook, "store.ttl": "1h"}
        )
        bodies = [ask(f"random {number}") for number in range(30)]
        good = [ask(f"good {number}", model="m-large") for number in range(10)]
        await warm(proxy, *bodies, *good)
        for body in (*bodies, *good):
            await proxy.post(body)

        async def paused() -> bool:
            return (await proxy.post(bodies[0])).reason == "quarantined"

        await until(paused)
        assert await proxy.metric("samewise_consistency_ratio", environment="a" * 32) < 0.1

        async def good_is_known() -> bool:
            return await proxy.metric("samewise_consistency_ratio", environment="b" * 32) == 1.0

        await until(good_is_known)
        assert (await proxy.post(good[0])).cache == "HIT"
        new = ask("new while paused")
        assert [(await proxy.post(new)).cache for _ in range(2)] == ["MISS", "MISS"]
        level = (await proxy.admin("GET", "/status"))["consistency"]["a" * 32]
        assert (level["state"], level["paused"]) == ("degraded", True)
        assert level["high"] < level["floor"] < level["target"]

        async def told() -> bool:
            return bool(hooked)

        await until(told)
        assert [each["state"] for each in hooked] == ["degraded"]
        assert hooked[0]["environment"] == "a" * 32
        assert hooked[0]["divergences"]


async def test_a_hook_may_be_a_command(mb: MockBackend, make_proxy: MakeProxy, tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    write = tmp_path / "hook.py"
    write.write_text(f"import sys, pathlib\npathlib.Path({str(out)!r}).write_bytes(sys.stdin.buffer.read())\n")
    proxy = await make_proxy(settings={**RATE, "verify.hook": f"{sys.executable} {write}"})
    bodies = [ask(f"command {number}") for number in range(10)]
    await warm(proxy, *bodies)
    await hit(proxy, *bodies)

    async def told() -> bool:
        return out.exists() and bool(out.read_bytes())

    await until(told)
    assert json.loads(out.read_bytes())["state"] == "degraded"


async def test_an_answer_is_kept_once_recomputations_agreed(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={**RATE, "verify.rate": 0.0, "cache.admit": "verified:2"})
    mb.text = truth
    body = ask("audited")
    first = await proxy.post(body)
    assert (first.cache, first.reason) == ("MISS", "unverified")
    await verified(proxy, 2)

    async def kept() -> bool:
        return (await proxy.post(body)).cache == "HIT"

    await until(kept)
    assert (await proxy.post(body)).headers["x-samewise-verified"] == "2"
    mb.text = lambda body, number: f"random {number}"
    for _ in range(3):
        assert (await proxy.post(ask("unstable"))).cache == "MISS"
    assert (await proxy.post(ask("unstable"))).reason == "unverified"


async def test_an_operator_has_entries_recomputed(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={"verify.rate": 0.0})
    mb.text = truth
    await warm(proxy, ask("one"), ask("two"))
    keys = [answer.key for answer in await hit(proxy, ask("one"), ask("two"))]
    mb.text = wrong_about("two")
    told = await proxy.admin("POST", "/verify", {"keys": [*keys, "0" * 64]})
    assert [row["verdict"] for row in told["items"]] == ["match", "divergent", "inconclusive"]
    refused = await proxy.request("POST", "/samewise/v1/verify", body={"keys": []}, admin=True)
    assert refused.status == 400
    missing = await proxy.request("GET", "/samewise/v1/divergences/nothing", admin=True)
    assert missing.status == 404
    assert (await proxy.request("GET", "/samewise/v1/divergences?limit=x", admin=True)).status == 400


async def test_divergences_outlive_a_restart(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy(settings={**RATE, "verify.action": "quarantine", "store.url": "sqlite:///s.db"})
    mb.text = truth
    body = ask("restart")
    await warm(proxy, body)
    mb.text = wrong_about("restart")
    await hit(proxy, body)
    await verified(proxy, 1)
    before = await listed(proxy)
    await proxy.restart()
    assert await listed(proxy) == before
    assert (await proxy.post(body)).reason == "quarantined"


@pytest.mark.parametrize("secret", ["a secret", "ed25519:" + "07" * 32])
async def test_receipts_prove_what_was_answered(mb: MockBackend, make_proxy: MakeProxy, secret: str) -> None:
    proxy = await make_proxy(
        settings={"verify.rate": 0.0, "receipts.enabled": True, "receipts.secret": secret, "receipts.path": "log"}
    )
    mb.text = truth
    body = ask("proven")
    answers = [await proxy.post(body), await proxy.post(body), await proxy.post({**body, "stream": True})]
    answers.append(await proxy.post(ask("proven", temperature=1, seed=None)))
    identities = [answer.headers["x-samewise-receipt"] for answer in answers]
    assert len(set(identities)) == 4
    told = [await proxy.admin("GET", f"/receipts/{identity}") for identity in identities]
    assert [each["cache"] for each in told] == ["miss", "hit", "hit", "bypass"]
    assert len({each["output"] for each in told}) == 1
    assert [each["key"] for each in told[:3]] == [answers[0].key] * 3
    assert told[0]["environment"] == "a" * 32
    assert told[0]["snapshot"] == "default@1"
    whole = await proxy.admin("GET", "/receipts/check")
    assert (whole["whole"], whole["lines"]) == (True, 4)

    assert (await proxy.admin("POST", f"/receipts/{identities[1]}/replay"))["verdict"] == "match"
    mb.text = wrong_about("proven")
    replayed = await proxy.admin("POST", f"/receipts/{identities[1]}/replay")
    assert (replayed["verdict"], replayed["entry"], replayed["backend"]) == ("divergent", True, False)
    lost = await proxy.admin("POST", f"/receipts/{identities[3]}/replay")
    assert lost["verdict"] == "inconclusive"
    mb.text = truth
    asked = {"request": ask("proven", temperature=1)}
    assert (await proxy.admin("POST", f"/receipts/{identities[3]}/replay", asked))["verdict"] == "match"

    log = proxy.folder / "log"
    log.write_bytes(log.read_bytes().replace(b'"cache":"hit"', b'"cache":"HIT"', 1))
    broken = await proxy.admin("GET", "/receipts/check")
    assert (broken["whole"], broken["broken"]["place"]) == (False, 2)
    refused = await proxy.post({"model": "m", "messages": [], "stream": 3})
    assert "x-samewise-receipt" not in refused.headers or refused.status == 200


async def test_receipts_are_off_unless_they_are_wanted(mb: MockBackend, make_proxy: MakeProxy) -> None:
    proxy = await make_proxy()
    assert "x-samewise-receipt" not in (await proxy.post(ask("plain"))).headers
    assert (await proxy.request("GET", "/samewise/v1/receipts/check", admin=True)).status == 404
    with pytest.raises(AssertionError, match=r"\[receipts\] secret"):
        await make_proxy(settings={"receipts.enabled": True})
