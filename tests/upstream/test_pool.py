"""Many upstreams as one: who is asked, who is left out, and who comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from samewise.ports import Call, Clock, Member, UpstreamFailed
from samewise.upstream.affinity import by_name
from samewise.upstream.factory import open_upstreams
from samewise.upstream.health import Health
from samewise.upstream.options import UpstreamOptions
from samewise.upstream.pool import Pool
from samewise.upstream.strategy import C
from tests.support.clock import ManualClock
from tests.upstream.servers import Fake, http, read_request, tcp
from tests.upstream.test_environment import AMPLE, LONG, Wall, patient, until  # noqa: F401

A, B = "a" * 32, "b" * 32


def manifest(identity: str = A) -> dict[str, Any]:
    return {"id": identity, "engine": "vllm"}


def call(**more: Any) -> Call:
    return Call(method="POST", path="/v1/completions", body=b'{"model":"m","prompt":"x"}', **more)


@asynccontextmanager
async def pool(
    *fakes: Fake, poll: float = LONG, clock: Clock | None = None, **more: Any
) -> AsyncIterator[tuple[Pool, list[str]]]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(http(fake)) for fake in fakes]
        made = open_upstreams([UpstreamOptions(url=url) for url in urls], AMPLE, poll, clock or Wall(), **more)
        stack.push_async_callback(made.close)
        await made.start()
        await until(lambda: all(member.healthy for member in made.members()))
        yield made, urls


class First:
    """A strategy that takes whoever is listed first, and notes who was offered."""

    seen = None

    def __init__(self) -> None:
        self.offered: list[list[str]] = []

    def choose(self, candidates: Sequence[C], call: Call) -> C:
        self.offered.append([candidate.url for candidate in candidates])
        return candidates[0]


async def ask(made: Pool, **more: Any) -> str:
    """Who answered."""
    exchange = await made.open(call(**more))
    await exchange.read()
    await exchange.close()
    return exchange.member


async def test_an_environment_is_asked_of_its_own_members_only() -> None:
    async with pool(Fake(manifest=manifest(A)), Fake(manifest=manifest(B)), Fake(manifest=manifest(B))) as (made, urls):
        assert {await ask(made, environment=A) for _ in range(6)} == {urls[0]}
        assert {await ask(made, environment=B) for _ in range(6)} == set(urls[1:])
        assert {await ask(made) for _ in range(6)} == set(urls)
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(call(environment="c"))
        assert (caught.value.kind, caught.value.sent) == ("none-eligible", False)


async def test_a_model_is_asked_of_those_that_list_it_and_an_unlisted_one_of_anybody() -> None:
    fakes = [Fake(manifest=manifest(), models=["m"]), Fake(manifest=manifest(), models=["m", "n"])]
    async with pool(*fakes) as (made, urls):
        assert {await ask(made, model="n") for _ in range(4)} == {urls[1]}
        assert {await ask(made, model="m") for _ in range(4)} == set(urls)
        assert {await ask(made, model="new") for _ in range(4)} == set(urls)
        assert [member.models for member in made.members()] == [("m",), ("m", "n")]


async def test_a_model_that_only_another_environment_offers_is_asked_of_nobody() -> None:
    async with pool(Fake(manifest=manifest(A)), Fake(manifest=manifest(B), models=["n"])) as (made, _):
        with pytest.raises(UpstreamFailed, match="model n in environment"):
            await made.open(call(environment=A, model="n"))


async def test_the_least_loaded_is_asked_and_the_count_is_told() -> None:
    hold = asyncio.Event()
    slow, free = Fake(manifest=manifest()), Fake(manifest=manifest())
    async with pool(slow, free) as (made, urls):
        slow.hold = free.hold = hold
        tasks = [asyncio.create_task(made.open(call())) for _ in range(6)]
        await until(lambda: slow.running == free.running == 3)
        assert [member.running for member in made.members()] == [3, 3]
        hold.set()
        exchanges = [await task for task in tasks]
        counts = Counter(exchange.member for exchange in exchanges)
        assert counts == {urls[0]: 3, urls[1]: 3}
        assert sorted(exchange.concurrency for exchange in exchanges) == [1, 1, 2, 2, 3, 3]
        for exchange in exchanges:
            await exchange.close()
            await exchange.close()
        assert [member.running for member in made.members()] == [0, 0]


async def test_a_cancelled_call_runs_no_more() -> None:
    hold = asyncio.Event()
    fake = Fake(manifest=manifest(), hold=hold)
    async with pool(fake) as (made, _):
        task = asyncio.create_task(made.open(call()))
        await until(lambda: fake.running == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert made.members()[0].running == 0
        hold.set()


async def test_a_member_that_refuses_connections_costs_no_request() -> None:
    alive = Fake(manifest=manifest())
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(http(alive))]
        async with http(Fake(manifest=manifest())) as gone:
            urls.append(gone)
            made = open_upstreams([UpstreamOptions(url=url) for url in urls], AMPLE, LONG, Wall())
            stack.push_async_callback(made.close)
            await made.start()
            assert all(member.healthy for member in made.members())
        assert {await ask(made, environment=A) for _ in range(20)} == {urls[0]}
        assert [member.healthy for member in made.members()] == [True, False]
        assert {await ask(made, member=urls[0])} == {urls[0]}
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(call(member=gone))
        assert caught.value.kind == "unreachable"


async def test_what_may_have_run_is_not_asked_of_another() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    other = Fake(manifest=manifest())
    async with tcp(talk) as bad, http(other) as good:
        made = open_upstreams([UpstreamOptions(url=url) for url in (bad, good)], AMPLE, LONG, Wall())
        await made.start()
        try:
            outcomes = []
            for _ in range(2):
                try:
                    outcomes.append(await ask(made))
                except UpstreamFailed as failure:
                    outcomes.append(failure.kind)
                    assert failure.sent
            assert sorted(outcomes) == sorted(["cut", good])
            assert other.generated == 1
        finally:
            await made.close()


@pytest.mark.parametrize(("deadly", "answered"), [(1, True), (2, False)])
async def test_a_question_with_one_answer_is_asked_of_one_other_where_an_upstream_died_over_it(
    deadly: int, answered: bool
) -> None:
    died = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal died
        head, _ = await read_request(reader)
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        else:
            died += 1

    other = Fake(manifest=manifest())
    async with AsyncExitStack() as stack:
        bad = [await stack.enter_async_context(tcp(talk)) for _ in range(deadly)]
        good = await stack.enter_async_context(http(other))
        options = [UpstreamOptions(url=url) for url in (*bad, good)]
        made = open_upstreams(options, AMPLE, LONG, Wall(), strategy=First())
        stack.push_async_callback(made.close)
        await made.start()
        if answered:
            assert await ask(made, hedge=True) == good
        else:
            with pytest.raises(UpstreamFailed) as caught:
                await ask(made, hedge=True)
            assert (caught.value.kind, caught.value.sent) == ("cut", True)
    assert (died, other.generated) == (deadly, int(answered))


async def test_all_are_tried_before_a_request_fails_and_all_the_same_when_none_is_healthy() -> None:
    async with http(Fake()) as one, http(Fake()) as two:
        pass
    made = open_upstreams([UpstreamOptions(url=url) for url in (one, two)], AMPLE, LONG, Wall())
    await made.start()
    try:
        with pytest.raises(UpstreamFailed) as caught:
            await made.open(call())
        assert (caught.value.kind, caught.value.sent) == ("unreachable", False)
        port = int(one.split(":")[2].split("/")[0])
        async with http(Fake(), port=port):
            assert await ask(made) == one
    finally:
        await made.close()


async def test_a_member_whose_health_page_says_no_gets_nothing_until_it_says_yes() -> None:
    sick, well = Fake(manifest=manifest()), Fake(manifest=manifest())
    told: list[Member] = []
    async with pool(sick, well, poll=0.02, on_change=told.append) as (made, urls):
        sick.health = 503
        await until(lambda: not made.members()[0].healthy)
        assert "503" in made.members()[0].error
        assert {await ask(made, environment=A) for _ in range(4)} == {urls[1]}
        sick.health = 200
        await until(lambda: made.members()[0].healthy)
        assert {await ask(made) for _ in range(4)} == set(urls)
    assert [member.healthy for member in told if member.url == urls[0]][-3:] == [True, False, True]


class Flaky(Fake):
    """Looks well, and cuts the answers that it is asked for while `cut` is set."""

    cut = False

    async def generate(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.cut and request.transport is not None:
            request.transport.abort()
        return await super().generate(request)


async def fail(made: Pool, url: str, times: int) -> None:
    for _ in range(times):
        with pytest.raises(UpstreamFailed) as caught:
            await ask(made, member=url)
        assert caught.value.kind == "cut"


async def test_a_member_whose_answers_fail_gets_nothing_for_a_while_however_well_it_looks() -> None:
    flaky, well, clock = Flaky(manifest=manifest()), Fake(manifest=manifest()), ManualClock()
    async with pool(flaky, well, clock=clock) as (made, urls):
        flaky.cut = True
        await fail(made, urls[0], 2)
        assert made.members()[0].healthy
        await fail(made, urls[0], 1)
        await made.refresh()
        assert [member.healthy for member in made.members()] == [False, True]
        assert made.members()[0].error
        assert {await ask(made, environment=A) for _ in range(8)} == {urls[1]}
        flaky.cut = False
        clock.advance(1.0)
        assert {await ask(made, environment=A) for _ in range(8)} == set(urls)
        await made.refresh()
        assert [member.error for member in made.members()] == ["", ""]
        flaky.cut = True
        await fail(made, urls[0], 3)
        clock.advance(1.0)
        assert made.members()[0].healthy, "a success has cleared its record: it is out for a second again, not for two"


async def test_all_that_failed_are_asked_all_the_same_where_nobody_else_is_left() -> None:
    one, two, clock = Flaky(manifest=manifest()), Flaky(manifest=manifest()), ManualClock()
    async with pool(one, two, clock=clock) as (made, urls):
        for fake, url in zip((one, two), urls, strict=True):
            fake.cut = True
            await fail(made, url, 3)
            fake.cut = False
        assert [member.healthy for member in made.members()] == [False, False]
        assert await ask(made) in urls


@pytest.mark.parametrize("left_by", ["failing answers", "a health page"])
async def test_a_member_that_comes_back_takes_its_share_gradually(left_by: str) -> None:
    back, stayed, clock = Flaky(manifest=manifest()), Fake(manifest=manifest()), ManualClock()
    clock.advance(1000)
    async with pool(back, stayed, clock=clock, strategy=by_name("prefix", clock, "x-session")) as (made, urls):
        clock.advance(1000)
        if left_by == "failing answers":
            back.cut = True
            await fail(made, urls[0], 3)
            back.cut = False
        else:
            back.health = 503
            await made.refresh()
            assert not made.members()[0].healthy
            back.health = 200
        clock.advance(1.0)
        await made.refresh()

        async def share(name: str) -> int:
            """Of 30 different questions at once, how many the one that came back is asked."""
            back.hold = stayed.hold = asyncio.Event()
            prompts = [f"{name} {number}".encode() * 100 for number in range(30)]
            tasks = [asyncio.create_task(made.open(call(route=lambda prompt=prompt: prompt))) for prompt in prompts]
            await until(lambda: back.running + stayed.running == 30)
            asked = back.running
            back.hold.set()
            for task in tasks:
                await (await task).close()
            return asked

        assert await share("at once") <= 5
        clock.advance(60)
        assert await share("later") >= 10


@pytest.mark.parametrize("contract", [True, False])
async def test_what_was_warm_on_a_member_is_cold_once_another_process_answers(contract: bool) -> None:
    def told(instance: str) -> dict[str, Any] | None:
        return {**manifest(), "info": {"instance": instance}} if contract else None

    fake = Fake(manifest=told("one"))
    async with pool(fake, strategy=by_name("prefix", Wall(), "x-session")) as (made, urls):
        asked = call(route=lambda: b"x" * 4000)

        def warm() -> dict[str, int] | None:
            warmth = made.warmth(asked)
            assert warmth is not None
            return warmth.warm

        assert warm() == {urls[0]: 0}
        await ask(made, route=asked.route)
        await made.refresh()
        assert warm() == {urls[0]: 15}
        fake.manifest, fake.started = told("two"), 2000.0
        await made.refresh()
        assert warm() == {urls[0]: 0}


async def test_a_draining_member_gets_nothing_new_and_ends_what_it_has() -> None:
    one, two = Fake(manifest=manifest()), Fake(manifest=manifest())
    async with pool(one, two) as (made, urls):
        one.hold = asyncio.Event()
        task = asyncio.create_task(made.open(call(member=urls[0])))
        await until(lambda: one.running == 1)
        assert made.drain(urls[0])
        assert {await ask(made, environment=A) for _ in range(4)} == {urls[1]}
        assert made.remove(urls[0])
        assert [member.url for member in made.members()] == [urls[1]]
        one.hold.set()
        exchange = await task
        assert b"said" in await exchange.read()
        await exchange.close()
        assert not made.remove(urls[0])
        assert not made.drain(urls[0])


async def test_upstreams_come_and_go_while_it_runs() -> None:
    first, second = Fake(manifest=manifest(A)), Fake(manifest=manifest(B))
    async with pool(first) as (made, urls), http(second) as url:
        added = await made.add(url + "/")
        assert added.environment is not None
        assert (added.url, added.healthy, added.environment.id) == (url, True, B)
        assert await ask(made, environment=B) == url
        made.drain(url)
        assert (await made.add(url)).draining is False
        made.remove(urls[0])
        assert {await ask(made) for _ in range(3)} == {url}
        with pytest.raises(ValueError, match="base URL"):
            await made.add("nowhere")


async def test_a_pool_of_none_says_what_to_do_and_twice_the_same_is_refused() -> None:
    made = open_upstreams([], AMPLE, LONG, Wall())
    await made.start()
    with pytest.raises(UpstreamFailed, match="--upstream"):
        await made.open(call())
    await made.close()
    twice = [UpstreamOptions(url="http://h:1/v1"), UpstreamOptions(url="http://h:1/v1/")]
    with pytest.raises(ValueError, match="twice"):
        open_upstreams(twice, AMPLE, LONG, Wall())


async def test_the_strategy_decides_among_the_eligible() -> None:
    strategy = First()
    fakes = [Fake(manifest=manifest(identity)) for identity in (A, A, B)]
    async with pool(*fakes, strategy=strategy) as (made, urls):
        assert {await ask(made, environment=A) for _ in range(3)} == {urls[0]}
    assert strategy.offered == [urls[:2]] * 3


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        ({"resolved": {"cache_config": {"block_size": 128}}}, 128),
        ({"block_size": 32}, 32),
        ({"resolved": "?"}, 64),
        ({"block_size": "large"}, 64),
        ({}, 64),
    ],
)
async def test_prefixes_are_cut_into_the_blocks_that_the_manifest_tells(told: dict[str, Any], tokens: int) -> None:
    async with pool(Fake(manifest={**manifest(), **told})) as (made, _):
        warmth = made.warmth(call(route=lambda: b"x" * 4096))
        assert warmth is not None
        assert (warmth.block_tokens, warmth.blocks) == (tokens, 1024 // tokens)


async def test_a_rolling_update_serves_each_environment_from_its_own_members() -> None:
    """Under load every answer comes from the environment that was wanted, and no request fails that need not."""
    fakes = [Fake(manifest=manifest(A)) for _ in range(3)]
    async with pool(*fakes, poll=0.02) as (made, _):
        wrong: list[str | None] = []
        wanted = A
        stop = False

        async def load() -> None:
            while not stop:
                want = wanted
                exchange = await made.open(call(environment=want))
                await exchange.read()
                await exchange.close()
                if exchange.environment not in {A, B}:
                    wrong.append(exchange.environment)

        users = [asyncio.create_task(load()) for _ in range(8)]
        for fake in fakes[:2]:
            fake.manifest = manifest(B)
            await until(lambda: made.members()[fakes.index(fake)].environment.id == B)  # type: ignore[union-attr]  # noqa: B023
        wanted = B
        fakes[2].manifest = manifest(B)
        await until(lambda: all(member.environment and member.environment.id == B for member in made.members()))
        stop = True
        await asyncio.gather(*users)
        assert wrong == []


# --- the rules of health, without waiting -------------------------------------------------------------


def failure(kind: str) -> UpstreamFailed:
    return UpstreamFailed(kind, kind)


def test_requests_that_fail_in_a_row_put_a_member_out_for_longer_each_time() -> None:
    clock = ManualClock()
    health = Health(clock)
    health.looked(ready=True)
    for seconds in (1, 2, 4, 8, 16, 30, 30):
        for _ in range(2):
            health.failed(failure("cut"))
        assert health.good()
        health.failed(failure("timeout"))
        health.looked(ready=True)
        assert not health.good()
        clock.advance(seconds - 0.01)
        assert not health.good()
        clock.advance(0.01)
        assert health.good()
    health.succeeded()
    for _ in range(3):
        health.failed(failure("cut"))
    clock.advance(1)
    assert health.good()


def test_failures_with_successes_between_them_are_forgiven() -> None:
    health = Health(ManualClock())
    health.looked(ready=True)
    for _ in range(20):
        health.failed(failure("cut"))
        health.succeeded()
    assert health.good()


def test_a_refused_connection_ends_it_at_once_and_a_look_restores_it() -> None:
    health = Health(ManualClock())
    assert not health.good()
    health.looked(ready=True)
    health.failed(failure("unreachable"))
    assert not health.good()
    health.looked(ready=True)
    assert health.good()
    health.unseen(failure("unreachable"))
    assert not health.good()


def test_a_server_too_busy_for_a_look_is_given_three() -> None:
    health = Health(ManualClock())
    health.looked(ready=True)
    for good in (True, True, False):
        health.unseen(failure("timeout"))
        assert health.good() is good
