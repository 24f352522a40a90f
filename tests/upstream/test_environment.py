"""What an upstream is: told by its contract, seen in its answers, or vouched for by a label."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from samewise.core.fingerprint import Environment
from samewise.ports import Call, Member
from samewise.upstream.factory import open_upstreams
from samewise.upstream.options import Timeouts, UpstreamOptions
from samewise.upstream.pool import Pool
from tests.support.patience import ENOUGH
from tests.upstream.servers import Fake, http

AMPLE = Timeouts(connect=ENOUGH, first_byte=ENOUGH, idle=ENOUGH, total=ENOUGH)
LONG = 3600.0
CONTRACT: dict[str, Any] = {
    "id": "a" * 32,
    "model": "m",
    "engine": "vLLM",
    "generation_defaults": {"temperature": 1.0},
    "info": {"instance": "i-1"},
}
ASK = Call(method="POST", path="/v1/completions", body=b'{"model":"m","prompt":"x","temperature":0}', model="m")


class Wall:
    """The loop's own time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def pool(
    *urls: str, poll: float = 0.05, probe: float = 0.05, label: str = "auto", settle: bool = True, **more: Any
) -> AsyncIterator[Pool]:
    options = [UpstreamOptions(url=url, probe=probe, environment=label) for url in urls]
    made = open_upstreams(options, AMPLE, poll, Wall(), **more)
    await made.start()
    try:
        if settle:
            await until(lambda: all(member.environment is not None for member in made.members()))
        yield made
    finally:
        await made.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits for answers as long as a busy machine needs."""
    monkeypatch.setattr("samewise.upstream.pool._START", ENOUGH)


async def until(true: Callable[[], bool]) -> None:
    """Return once it holds; fail where it does not come to."""
    async with asyncio.timeout(ENOUGH):
        while not true():  # noqa: ASYNC110 - the state of another task, which tells nobody
            await asyncio.sleep(0.005)


def environment(made: Pool, at: int = 0) -> Environment:
    known = made.members()[at].environment
    assert known is not None
    return known


async def seen(fake: Fake, **options: Any) -> Environment:
    """What a new proxy takes this server for."""
    async with http(fake) as url, pool(url, **{"poll": LONG, "probe": LONG, **options}) as made:
        return environment(made)


# --- the contract -----------------------------------------------------------------------------------


async def test_a_manifest_is_known_when_start_returns_and_costs_no_generation() -> None:
    fake = Fake(manifest=CONTRACT)
    known = await seen(fake, settle=False)
    assert (known.id, known.origin, known.engine, known.model) == ("a" * 32, "contract", "vllm", "m")
    assert known.defaults == {"temperature": 1.0}
    assert fake.generated == 0


async def test_a_new_manifest_is_noticed_without_traffic() -> None:
    fake = Fake(manifest=CONTRACT)
    told: list[Member] = []
    async with http(fake) as url, pool(url, on_change=told.append) as made:
        fake.manifest = {**CONTRACT, "id": "b"}
        await until(lambda: environment(made).id == "b")
    assert [member.environment.id for member in told if member.environment] == ["a" * 32, "b"]


async def test_an_answer_that_names_another_environment_is_looked_into_at_once() -> None:
    fake = Fake(manifest=CONTRACT)
    async with http(fake) as url, pool(url, poll=LONG) as made:
        fake.manifest = {**CONTRACT, "id": "b"}
        exchange = await made.open(ASK)
        await exchange.read()
        await exchange.close()
        assert (exchange.environment, exchange.instance) == ("b", "i-1")
        await until(lambda: environment(made).id == "b")


async def test_an_answer_without_the_header_has_the_members_environment() -> None:
    async with http(Fake(manifest=CONTRACT, header=False)) as url, pool(url, poll=LONG) as made:
        exchange = await made.open(ASK)
        await exchange.close()
        assert exchange.environment == "a" * 32


async def test_the_last_known_environment_stays_while_the_server_is_away() -> None:
    fake = Fake(manifest=CONTRACT)
    async with http(fake) as url:
        made = open_upstreams([UpstreamOptions(url=url)], AMPLE, 0.05, Wall())
        await made.start()
    try:
        await until(lambda: not made.members()[0].healthy)
        assert environment(made).id == "a" * 32
        assert made.members()[0].error
        fake.manifest = {**CONTRACT, "id": "b"}
        async with http(fake, port=int(url.split(":")[2].split("/")[0])):
            await until(lambda: made.members()[0].healthy)
            assert environment(made).id == "b"
    finally:
        await made.close()


@pytest.mark.parametrize("manifest", [{"id": ""}, {"id": "x" * 129}, {"id": "a b"}, {"id": 7}, {"model": "m"}])
async def test_a_page_that_is_no_manifest_is_no_contract_and_said_so(manifest: dict[str, Any]) -> None:
    known = await seen(Fake(manifest=manifest, header=False))
    assert known.origin == "observed"
    assert "/samewise/environment" in known.manifest["info"]["note"]


# --- labels -----------------------------------------------------------------------------------------


async def test_a_label_is_the_environment_whatever_the_server_says() -> None:
    fake = Fake(manifest=CONTRACT)
    async with http(fake) as url, pool(url, label="prod-7") as made:
        assert (environment(made).id, environment(made).origin) == ("prod-7", "label")
        exchange = await made.open(ASK)
        await exchange.close()
        assert exchange.environment == "prod-7"
    assert fake.generated == 1


async def test_a_label_that_can_be_no_id_is_hashed() -> None:
    known = await seen(Fake(), label="größer als vorher")
    assert len(known.id) == 32
    assert known.id != (await seen(Fake(), label="größer als vorher!")).id


# --- observation ------------------------------------------------------------------------------------


async def test_a_server_without_the_contract_is_described_by_what_can_be_seen() -> None:
    known = await seen(Fake())
    assert (known.origin, known.engine, known.model, known.defaults) == ("observed", "vllm", "m", None)
    manifest = known.manifest
    assert manifest["observed"] is True
    assert (manifest["engine_version"], manifest["system_fingerprint"]) == ("0.32.0", "fp-1")
    assert sorted(manifest["probes"]) == ["m/chat", "m/greedy-1", "m/greedy-2", "m/sampled"]
    assert manifest["info"]["probes"]["state"] == "agreed"
    assert "url" not in manifest


CHANGES: list[dict[str, Any]] = [
    {"weights": 2},
    {"template": 2},
    {"temperature": 0.7},
    {"fingerprint": "fp-2"},
    {"version": "0.33.0"},
    {"models": ["m", "lora"]},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_what_changes_the_answers_is_another_environment_and_back_is_back(change: dict[str, Any]) -> None:
    fake = Fake()
    original = {name: getattr(fake, name) for name in change}
    async with http(fake) as url, pool(url) as made:
        first = environment(made).id
        for name, value in change.items():
            setattr(fake, name, value)
        await until(lambda: environment(made).id != first)
        for name, value in original.items():
            setattr(fake, name, value)
        await until(lambda: environment(made).id == first)
    assert (await seen(Fake(**change))).id != first
    assert (await seen(Fake())).id == first


async def test_a_restart_alone_changes_nothing_and_the_url_says_nothing() -> None:
    fake = Fake()
    async with http(fake) as url, pool(url, probe=LONG) as made:
        first, asked = environment(made).id, fake.generated
        fake.started = 2000.0
        await until(lambda: fake.generated >= 2 * asked)
        await until(lambda: environment(made).manifest["info"]["started"] == 2000.0)
        assert environment(made).id == first


async def test_after_a_restart_no_answer_counts_until_the_server_was_asked_again() -> None:
    fake = Fake()
    async with http(fake) as url, pool(url, probe=LONG) as made:
        first = environment(made).id
        fake.hold = asyncio.Event()
        fake.weights, fake.started = 2, 2000.0
        await until(lambda: fake.running > 0)
        asking = asyncio.create_task(made.open(ASK))
        await until(lambda: fake.running > 1)
        fake.hold.set()
        exchange = await asking
        await exchange.close()
        assert exchange.environment == ""
        await until(lambda: environment(made).id != first)
        exchange = await made.open(ASK)
        await exchange.close()
        assert exchange.environment == environment(made).id


async def test_log_probabilities_that_move_with_the_batch_are_no_change() -> None:
    fake = Fake(noise=0.02)
    told: list[Member] = []
    async with http(fake) as url, pool(url, on_change=told.append) as made:
        first = environment(made).id
        asked = fake.generated
        fake.running += 1  # somebody else's request
        await until(lambda: fake.generated > asked + 20)
        asked, fake.started = fake.generated, 2000.0
        await until(lambda: environment(made).manifest["info"]["started"] == 2000.0)
        assert fake.generated >= asked + 8
        fake.running -= 1
        assert environment(made).id == first
        fake.weights = 2
        await until(lambda: environment(made).id != first)
    assert first == (await seen(Fake())).id


async def test_a_server_that_never_says_the_same_twice_is_asked_no_more() -> None:
    fake = Fake(nonce=True)
    async with http(fake) as url, pool(url, probe=0.02) as made:
        known = environment(made)
        assert known.manifest["info"]["probes"]["state"] == "unreproducible"
        assert "probes" not in known.manifest
        asked, looked = fake.generated, len(fake.paths)
        await until(lambda: len(fake.paths) > looked + 30)
        assert fake.generated == asked == 2
        assert environment(made).id == known.id


async def test_a_server_that_refuses_probes_is_noted_and_shares_with_nobody() -> None:
    one = await seen(Fake(refuse=400))
    other = await seen(Fake(refuse=400))
    assert one.manifest["info"]["probes"]["state"] == "refused"
    assert one.id != other.id


async def test_a_busy_server_is_asked_again_and_not_cached_for_until_then() -> None:
    fake = Fake(refuse=503)
    async with http(fake) as url, pool(url, poll=0.02, settle=False) as made:
        assert made.members()[0].healthy
        assert made.members()[0].environment is None
        fake.refuse = None
        await until(lambda: made.members()[0].environment is not None)
        assert environment(made).manifest["info"]["probes"]["state"] == "agreed"


async def test_probes_can_be_turned_off_and_are_not_sent_to_a_server_with_many_models() -> None:
    off = Fake()
    known = await seen(off, probe=0)
    assert known.manifest["info"]["probes"] == {"state": "off"}
    many = Fake(models=[f"m{number}" for number in range(9)])
    known = await seen(many)
    assert known.manifest["info"]["probes"]["state"] == "not asked"
    assert known.model is None
    assert off.generated == many.generated == 0


async def test_probes_are_short_and_cold_where_the_engine_takes_a_salt() -> None:
    vllm, other = Fake(), Fake(owner="somebody")
    await seen(vllm)
    known = await seen(other)
    salts = [body["cache_salt"] for body in vllm.bodies]
    assert len(set(salts)) == len(salts)
    assert all(body["max_tokens"] <= 16 for body in vllm.bodies)
    assert not any("cache_salt" in body for body in other.bodies)
    assert known.engine == "unknown"


@pytest.mark.parametrize(
    ("owner", "version"), [("vllm", None), ("somebody", "0.32.0"), ("sglang", "1"), ("llamacpp", "1")]
)
async def test_an_engine_is_named_only_where_two_signs_agree(owner: str, version: str | None) -> None:
    assert (await seen(Fake(owner=owner, version=version), probe=0)).engine == "unknown"


async def test_a_server_that_says_nothing_at_all_is_still_known_apart() -> None:
    fake = Fake(models=[], version=None, started=None)
    known = await seen(fake)
    assert known.manifest["url"].startswith("http://127.0.0.1")


async def test_start_returns_soon_though_nobody_answers() -> None:
    async with http(Fake()) as url:
        pass
    began = asyncio.get_running_loop().time()
    async with pool(url, url.replace("/v1", "/other/v1"), poll=LONG, settle=False) as made:
        assert [member.healthy for member in made.members()] == [False, False]
    assert asyncio.get_running_loop().time() - began < ENOUGH / 2


async def test_start_does_not_wait_for_a_server_that_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samewise.upstream.pool._START", 0.2)
    hold = asyncio.Event()
    began = asyncio.get_running_loop().time()
    async with http(Fake(hold=hold)) as url, pool(url, poll=LONG, probe=LONG, settle=False) as made:
        assert asyncio.get_running_loop().time() - began < ENOUGH / 2
        assert made.members()[0].environment is None
        assert made.members()[0].healthy
        asking = asyncio.create_task(made.open(ASK))
        hold.set()
        exchange = await asking
        await exchange.close()
        assert exchange.environment == ""
        await until(lambda: made.members()[0].environment is not None)


async def test_refresh_asks_the_server_again_now() -> None:
    fake = Fake()
    async with http(fake) as url, pool(url, poll=LONG, probe=LONG) as made:
        first = environment(made).id
        fake.weights = 2
        await made.refresh(url)
        assert environment(made).id != first
