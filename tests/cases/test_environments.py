"""Entries belong to what answered: through swaps, rolling updates, canaries, trials and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from samewise.core.fingerprint import environment_id
from tests.cases.conftest import MakeProxy
from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Answered, Proxy, soon, until

OLD, NEW = "a" * 32, "b" * 32


def ask(number: int) -> dict[str, Any]:
    return {**B0, "messages": [{"role": "user", "content": f"question {number}"}]}


def named(backend: MockBackend) -> None:
    """Its answers say which environment made them."""
    identity = str(backend.manifest["id"])
    backend.text = lambda body, number: f"{identity} says {body['messages'][0]['content']}"


@contextlib.asynccontextmanager
async def backends(count: int, identity: str = OLD) -> AsyncIterator[list[MockBackend]]:
    async with contextlib.AsyncExitStack() as stack:
        found = [await stack.enter_async_context(MockBackend(manifest={"id": identity})) for _ in range(count)]
        for backend in found:
            named(backend)
        yield found


def swap(backend: MockBackend, identity: str) -> None:
    backend.become(identity)
    named(backend)


async def active(proxy: Proxy) -> list[str]:
    listed = await proxy.admin("GET", "/environments")
    return [item["id"] for item in listed["items"] if item["active"]]


async def test_a_rolling_update_under_load_fails_no_request_and_mixes_no_entries(make_proxy: MakeProxy) -> None:
    async with backends(3) as three:
        proxy = await make_proxy(*(each.url for each in three), settings={"environments.poll": "200ms"})
        wrong: list[Any] = []
        hits: list[str] = []
        over = asyncio.Event()

        async def caller(seed: int) -> None:
            number = seed
            while not over.is_set():
                number += 1
                answered = await proxy.post(ask(number % 40))
                said = answered.text.split(" ")[0] if answered.status == 200 else ""
                if answered.status != 200 or answered.text != f"{said} says question {number % 40}":
                    wrong.append(answered)
                elif answered.cache == "HIT":
                    hits.append(said)
                    if answered.headers["x-samewise-environment"] != said:
                        wrong.append(answered)

        callers = [asyncio.create_task(caller(seed * 7)) for seed in range(8)]

        async def more_hits(count: int) -> bool:
            return len(hits) >= count

        await until(lambda: more_hits(50))
        known = await proxy.post(ask(1))
        for at, backend in enumerate(three):
            if at == 1:  # one of them goes away and comes back as the new one, as a process does
                port = backend.port

                backend.healthy = False
                await until(functools.partial(reported_down, proxy, backend.url))
                await until(functools.partial(is_idle, backend))
                await backend.stop()
                swap(backend, NEW)
                backend.healthy = True
                await backend.start(port)
            else:
                swap(backend, NEW)
            before = len(hits)
            await until(functools.partial(more_hits, before + 50))
        await until(lambda: is_active(proxy, NEW))
        hits.clear()
        await until(lambda: more_hits(50))
        over.set()
        await asyncio.gather(*callers)
        assert wrong == []
        assert set(hits) == {NEW}
        assert [log for log in proxy.log if "Traceback" in log] == []
        for backend in three:
            swap(backend, OLD)
        await until(lambda: is_active(proxy, OLD))
        again = await proxy.post(ask(1))
        assert (again.cache, again.body) == ("HIT", known.body)


async def is_idle(backend: MockBackend) -> bool:
    return backend.running == 0


async def reported_down(proxy: Proxy, url: str) -> bool:
    listed = await proxy.admin("GET", "/upstreams")
    return any(item["url"] == url and not item["healthy"] for item in listed["items"])


async def is_active(proxy: Proxy, identity: str) -> bool:
    return await active(proxy) == [identity]


async def seen(proxy: Proxy, identity: str) -> bool:
    listed = await proxy.admin("GET", "/environments")
    return any(item["id"] == identity for item in listed["items"])


async def test_under_manual_nothing_new_answers_until_it_is_activated_and_a_restart_remembers(
    make_proxy: MakeProxy,
) -> None:
    settings = {"environments.rollout": "manual", "environments.poll": "100ms", "store.url": "sqlite:///entries.db"}
    async with backends(2) as (one, other):
        proxy = await make_proxy(one.url, other.url, settings=settings)
        assert (await proxy.post(ask(0))).text.startswith(OLD)
        swap(other, NEW)
        await until(lambda: seen(proxy, NEW))
        count = other.count
        for number in range(1, 8):
            assert (await proxy.post(ask(number))).text.startswith(OLD)
        assert other.count == count
        await proxy.admin("POST", f"/environments/{NEW}/activate", {"reason": "the week's release"})
        answered = await proxy.post(ask(0))
        assert (answered.cache, answered.text.startswith(NEW)) == ("MISS", True)
        await proxy.restart()
        assert await active(proxy) == [NEW]
        assert (await proxy.post(ask(0))).cache == "HIT"
        await proxy.admin("POST", f"/environments/{OLD}/activate")
        hit = await proxy.post(ask(0))
        assert (hit.cache, hit.text.startswith(OLD)) == ("HIT", True)


async def test_the_first_environment_under_manual_stays_active_over_a_restart_in_which_all_changed(
    make_proxy: MakeProxy,
) -> None:
    settings = {"environments.rollout": "manual", "environments.poll": "100ms", "store.url": "sqlite:///entries.db"}
    async with backends(1) as (one,):
        one.models = ["m"]
        proxy = await make_proxy(one.url, settings=settings)
        first = await proxy.post(ask(0))

        async def recorded() -> bool:
            return any("environment-activate" in line for line in proxy.log)

        await until(recorded)
        await proxy.stop()
        swap(one, NEW)
        await proxy.start()
        assert await active(proxy) == [OLD]
        hit = await proxy.post(ask(0))
        assert (hit.cache, hit.body) == ("HIT", first.body)
        served = await proxy.post(ask(1))  # better an answer that is not kept than none
        assert (served.status, served.reason) == (200, "environment-changed")


async def test_an_activation_reaches_every_proxy_on_the_store(make_proxy: MakeProxy, tmp_path: Any) -> None:
    settings = {"environments.poll": "100ms", "store.url": f"sqlite:///{tmp_path / 'shared.db'}"}
    async with backends(3) as three:
        swap(three[2], NEW)
        one, two = [await make_proxy(*(each.url for each in three), settings=settings) for _ in range(2)]
        assert await active(one) == await active(two) == [OLD]
        await one.admin("POST", f"/environments/{NEW}/activate")
        await soon(lambda: is_active(two, NEW))
        answered = await two.post(ask(0))
        assert answered.text.startswith(NEW)


async def test_under_auto_an_activation_holds_until_most_have_a_third_environment(make_proxy: MakeProxy) -> None:
    third = "c" * 32
    async with backends(3) as three:
        swap(three[2], NEW)
        proxy = await make_proxy(*(each.url for each in three), settings={"environments.poll": "100ms"})
        await proxy.admin("POST", f"/environments/{NEW}/activate")
        assert await active(proxy) == [NEW]
        for backend in three[:2]:
            swap(backend, third)
        await until(lambda: is_active(proxy, third))


async def test_a_canary_answers_its_share_of_misses_and_keeps_them_as_its_own(make_proxy: MakeProxy) -> None:
    settings = {"environments.canary": 0.3, "environments.poll": "100ms"}
    async with backends(3) as three:
        proxy = await make_proxy(*(each.url for each in three), settings=settings)
        known = [(await proxy.post(ask(number))).body for number in range(20)]
        swap(three[2], NEW)
        await until(lambda: seen(proxy, NEW))
        assert [(await proxy.post(ask(number))).body for number in range(20)] == known  # hits stay hits
        first = [await proxy.post(ask(number)) for number in range(100, 300)]
        share = [answer.text.startswith(NEW) for answer in first]
        assert 35 <= sum(share) <= 85
        assert all(
            answer.headers["x-samewise-environment"] == (NEW if new else OLD)
            for answer, new in zip(first, share, strict=True)
        )
        again = [await proxy.post(ask(number)) for number in range(100, 300)]
        assert {answer.cache for answer in again} == {"HIT"}
        assert [answer.body for answer in again] == [answer.body for answer in first]
        for backend in three[:2]:
            swap(backend, NEW)
        await until(lambda: is_active(proxy, NEW))
        later = [await proxy.post(ask(number)) for number in range(100, 300)]
        assert [answer.cache == "HIT" for answer in later] == share


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_canary_answers_a_list_of_prompts_wholly_or_not_at_all(make_proxy: MakeProxy, stream: bool) -> None:
    settings = {"environments.canary": 0.4, "environments.poll": "100ms"}
    async with backends(3) as three:
        for backend in three:
            backend.text = lambda body, number: f"about {body['prompt']}"
        proxy = await make_proxy(*(each.url for each in three), settings=settings)
        known = await proxy.post(prompts(["known"]), path=COMPLETIONS)
        assert known.cache == "MISS"
        swap(three[2], NEW)
        three[2].text = lambda body, number: f"NEW about {body['prompt']}"
        await until(lambda: seen(proxy, NEW))

        async def asked(texts: list[str]) -> Answered:
            return await proxy.post({**prompts(texts), "stream": stream}, path=COMPLETIONS)

        sides = []
        for number in range(40):
            texts = ["known", f"one {number}", f"two {number}"]
            answered = await asked(texts)
            new = [text.startswith("NEW") for text in spoken(answered, len(texts))]
            assert len(set(new)) == 1, answered
            sides.append(new[0])
            assert answered.headers["x-samewise-environment"] == (NEW if new[0] else OLD)
            again = await asked(texts)
            assert again.cache == "HIT"
            assert spoken(again, len(texts)) == spoken(answered, len(texts))
        assert 5 <= sum(sides) <= 30
        for count in range(2, 12):  # what the active one has answered stays answered
            hit = await asked(["known"] * count)
            assert (hit.cache, hit.headers["x-samewise-environment"]) == ("HIT", OLD)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_is_recorded_is_never_put_together_with_what_another_environment_says(
    proxy: Proxy, mb: MockBackend, stream: bool
) -> None:
    mb.text = lambda body, number: f"OLD {body['prompt']}"
    assert (await proxy.post({**prompts([]), "prompt": "known"}, path=COMPLETIONS)).cache == "MISS"
    mb.text = lambda body, number: f"NEW {body['prompt']}"
    mb.always(Script(headers={"x-samewise-environment": NEW}))
    answered = await proxy.post({**prompts(["known", "fresh"]), "stream": stream}, path=COMPLETIONS)
    assert spoken(answered, 2) == ["NEW known", "NEW fresh"]
    assert (answered.status, answered.cache) == (200, "MISS")


async def test_vectors_of_two_environments_are_never_one_answer(proxy: Proxy, mb: MockBackend) -> None:
    assert (await proxy.post({"model": "m", "input": ["known"]}, path="/v1/embeddings")).cache == "MISS"
    mb.always(Script(headers={"x-samewise-environment": NEW}))
    answered = await proxy.post({"model": "m", "input": ["known", "fresh"]}, path="/v1/embeddings")
    assert (answered.status, answered.cache, len(answered.json()["data"])) == (200, "MISS", 2)
    assert [received.body["input"] for received in mb.received[1:]] == ["fresh", ["known", "fresh"]]


COMPLETIONS = "/v1/completions"


def prompts(texts: list[str]) -> dict[str, Any]:
    return {"model": "m", "prompt": texts, "temperature": 0, "seed": 7, "max_tokens": 16}


def spoken(answered: Answered, count: int) -> list[str]:
    """The text of each prompt's choice, whole or streamed."""
    if not answered.headers["content-type"].startswith("text/event-stream"):
        return [choice["text"] for choice in answered.json()["choices"]]
    chunks = [json.loads(data) for data in answered.data() if data != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return ["".join(choice["text"] for choice in choices if choice["index"] == at) for at in range(count)]


async def test_environments_say_what_tells_them_apart(make_proxy: MakeProxy) -> None:
    async with backends(3) as three:
        three[2].become(NEW, weights="sha256:" + "1" * 64, extra={"deep": 1})
        proxy = await make_proxy(*(each.url for each in three))
        listed = (await proxy.admin("GET", "/environments"))["items"]
        assert [item["id"] for item in listed] == [OLD, NEW]
        assert listed[0]["differs"] == []
        assert listed[1]["differs"] == [
            {"field": "weights", "active": "sha256:" + "0" * 64, "here": "sha256:" + "1" * 64},
            {"field": "extra", "here": {"deep": 1}},
        ]
        assert (listed[1]["active"], listed[1]["waiting_for"][0]) == (False, "m")


async def test_an_observed_environment_says_what_was_seen_and_what_cannot_be(make_proxy: MakeProxy) -> None:
    async with MockBackend(contract=False) as backend:
        backend.text = lambda body, number: "the same"
        backend.models = ["m"]
        proxy = await make_proxy(backend.url)

        async def known() -> bool:
            return bool((await proxy.admin("GET", "/environments"))["items"])

        await until(known)
        (item,) = (await proxy.admin("GET", "/environments"))["items"]
        assert item["origin"] == "observed"
        assert {"engine", "models", "probes"} <= set(item["seen"])
        assert any("weights" in each for each in item["unseen"])


@pytest.mark.parametrize("steady", [True, False], ids=["steady", "unsteady"])
async def test_under_verified_only_what_agrees_with_itself_becomes_active(make_proxy: MakeProxy, steady: bool) -> None:
    settings = {"environments.rollout": "verified", "environments.poll": "100ms", "environments.trial": 2}
    async with backends(1) as (one,):
        one.models = ["m"]
        one.text = lambda body, number: "always" if steady else f"nonce {number}"
        proxy = await make_proxy(one.url, settings=settings)

        async def decided() -> bool:
            items = (await proxy.admin("GET", "/environments"))["items"]
            return any(each["state"] in {"passed", "failed"} for item in items for each in item["trials"].values())

        await until(decided)
        (item,) = (await proxy.admin("GET", "/environments"))["items"]
        assert item["trials"]["m"]["state"] == ("passed" if steady else "failed")
        if steady:
            await until(lambda: is_active(proxy, OLD))
        answered = await proxy.post(B0)
        assert (answered.status, answered.reason) == (200, None if steady else "unknown-environment")
        assert (await proxy.post(B0)).cache == ("HIT" if steady else "BYPASS")
        await proxy.admin("POST", f"/environments/{OLD}/activate")  # an operator may know better
        assert await active(proxy) == [OLD]


@pytest.mark.parametrize("told", [NEW, "", "a" * 129], ids=["another", "empty", "too-long"])
async def test_an_answer_whose_environment_is_another_is_served_and_kept_by_nobody(
    proxy: Proxy, mb: MockBackend, told: str
) -> None:
    mb.once(Script(headers={"x-samewise-environment": told}))
    answered = await proxy.post(B0)
    assert (answered.status, answered.cache, answered.reason) == (200, "MISS", "environment-changed")
    assert (await proxy.post(B0)).cache == "MISS"


MANIFEST: dict[str, Any] = {
    "model": "m",
    "engine": "mock",
    "engine_version": "1",
    "generation_defaults": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0},
    "weights": "sha256:" + "0" * 64,
    "dtype": "float32",
    "quantization": None,
    "parallelism": {"tensor": 1},
    "device": {"kind": "cuda", "model": "A", "count": 1},
}
OTHER: dict[str, Any] = {
    "engine_version": "2",
    "weights": "sha256:" + "1" * 64,
    "dtype": "bfloat16",
    "quantization": "awq",
    "parallelism": {"tensor": 2},
    "device": {"kind": "cuda", "model": "B", "count": 1},
}


def is_now(backend: MockBackend, manifest: dict[str, Any]) -> str:
    """The backend has this manifest, under the id that our own backends would give it."""
    identity = environment_id(manifest)
    backend.manifest = {"id": identity, **manifest, "info": {"instance": "mock"}}
    return identity


async def test_any_field_of_the_manifest_is_another_entry_and_their_order_is_none(
    make_proxy: MakeProxy, mb: MockBackend
) -> None:
    home = is_now(mb, MANIFEST)
    proxy = await make_proxy(settings={"environments.poll": "100ms"})
    await until(lambda: is_active(proxy, home))
    first = await proxy.post(B0)
    assert first.cache == "MISS"
    bodies = {first.body}
    for name, value in OTHER.items():
        other = is_now(mb, {**MANIFEST, name: value})
        await until(functools.partial(is_active, proxy, other))
        found = await proxy.post(B0)
        assert (found.cache, found.reason, found.body in bodies) == ("MISS", None, False), name
        assert (await proxy.post(B0)).body == found.body
        bodies.add(found.body)
    assert is_now(mb, dict(reversed(MANIFEST.items()))) == home
    await until(lambda: is_active(proxy, home))
    again = await proxy.post(B0)
    assert (again.cache, again.body) == ("HIT", first.body)


async def test_entries_of_one_backend_are_no_hits_while_another_environment_answers(make_proxy: MakeProxy) -> None:
    async with backends(2) as (one, other):
        is_now(one, MANIFEST)
        is_now(other, {**MANIFEST, "parallelism": {"tensor": 2}})
        named(one)
        named(other)
        proxy = await make_proxy(one.url, other.url, settings={"environments.poll": "100ms"})
        first = await proxy.post(ask(0))
        (its,) = await active(proxy)
        mine, theirs = (one, other) if one.manifest["id"] == its else (other, one)
        assert (first.cache, theirs.count) == ("MISS", 0)
        await proxy.admin("POST", "/upstreams/drain", {"url": mine.url})
        await until(lambda: is_active(proxy, str(theirs.manifest["id"])))
        second = await proxy.post(ask(0))
        assert (second.cache, second.text == first.text, theirs.count) == ("MISS", False, 1)
        await proxy.admin("POST", "/upstreams/add", {"url": mine.url})
        await proxy.admin("POST", "/upstreams/drain", {"url": theirs.url})
        await until(lambda: is_active(proxy, its))
        again = await proxy.post(ask(0))
        assert (again.cache, again.body) == ("HIT", first.body)


async def test_what_nobody_can_describe_is_answered_and_not_kept(make_proxy: MakeProxy) -> None:
    async with MockBackend(contract=False) as backend:
        backend.models = ["m"]
        backend.always(Script(status=503))  # whatever the proxy asks by itself
        backend.when(json.dumps(B0["messages"][0]["content"]), Script())
        proxy = await make_proxy(backend.url, settings={"environments.poll": "100ms"})
        for _ in range(2):
            answered = await proxy.post(B0)
            assert (answered.status, answered.cache) == (200, "BYPASS")
            assert answered.reason in {"unknown-environment", "unknown-defaults"}
