"""Whatever decides an answer is another environment of a real vLLM, and going back finds the old entries."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samewise_backend import tiny_model as tiny
from tests.support import adapter
from tests.support.proxy import Answered, Proxy, until
from tests.support.vllm import MODEL_NAME, VllmServer, require_vllm
from tests.vllm.plain import PlainVllm

pytestmark = pytest.mark.vllm

CLOSE = 1.0
"""Deviation of the logits of a model with close calls."""
MESSAGES = [{"role": "user", "content": "The cat watches the river."}]
SEEDED = {"model": MODEL_NAME, "messages": MESSAGES, "seed": 7, "max_tokens": 24, "logprobs": True}
"""The temperature is the server's to fill in."""
SPELLED = {**SEEDED, "temperature": 1.0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1.0}
MODEL_S_OWN = ("--generation-config", "auto")
"""The defaults of the model's folder are in force, as they are in vLLM by itself."""
START = 600.0
"""Seconds within which a proxy follows a vLLM that starts."""


@dataclass(frozen=True)
class Change:
    """What is done to the model's folder, or asked of the engine beside the rest; who is asked, and what differs."""

    name: str
    files: Callable[[Path], object] = lambda model: None
    words: tuple[str, ...] = ()
    model: str = MODEL_NAME
    said: Callable[[Answered], Any] | None = None
    """The part of the answer that can't be as before; None where only that it is asked for anew can be seen."""


def text(answer: Answered) -> str:
    return answer.text


def nats(answer: Answered) -> list[float]:
    return [token["logprob"] for token in answer.json()["choices"][0]["logprobs"]["content"]]


def weights(model: Path) -> None:
    tiny.write(model, tiny.Shape(seed=1, sharpness=CLOSE))


def defaults(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.05, "eos_token_id": 1}))


def template(model: Path) -> None:
    path = model / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|assistant|>", "<|assistant|>Well, "))


def lora(folder: Path) -> tuple[str, ...]:
    return ("--enable-lora", "--max-lora-rank", str(adapter.RANK), "--lora-modules", f"other={folder}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    require_vllm()
    return tiny.write(tmp_path / "model", tiny.Shape(seed=0, sharpness=CLOSE))


async def active(proxy: Proxy) -> str | None:
    items = (await proxy.admin("GET", "/environments"))["items"]
    return next((str(item["id"]) for item in items if item["active"]), None)


async def left(proxy: Proxy, *identities: str) -> str:
    """The active environment, as soon as it is none of these."""

    async def other() -> bool:
        return await active(proxy) not in {None, *identities}

    await until(other, within=START, every=0.1)
    found = await active(proxy)
    assert found is not None
    return found


async def reached(proxy: Proxy, identity: str) -> None:
    async def there() -> bool:
        return await active(proxy) == identity

    await until(there, within=START, every=0.1)


async def walk(server: VllmServer, proxy: Proxy, body: dict[str, Any], changes: list[Change], kept: Path) -> None:
    """From the first state through every change, each alone, and back to the first."""
    words = tuple(server.engine_args)
    home = await left(proxy)
    first = await proxy.post(body)
    assert (first.cache, first.reason) == ("MISS", None)
    assert first.headers["x-samewise-environment"] == home
    assert (await proxy.post(body)).cache == "HIT"
    seen = [home]
    answers = [first.body]
    for change in changes:
        change.files(server.model)
        await asyncio.to_thread(server.restart, (*words, *change.words))
        seen.append(await left(proxy, *seen))
        asked = {**body, "model": change.model}
        found = await proxy.post(asked)
        assert (found.cache, found.reason) == ("MISS", None), change.name
        assert found.headers["x-samewise-environment"] == seen[-1], change.name
        assert found.body not in answers, change.name
        if change.said is not None:
            assert change.said(found) != change.said(first), change.name
        again = await proxy.post(asked)
        assert (again.cache, again.body) == ("HIT", found.body), change.name
        answers.append(found.body)
        shutil.rmtree(server.model)
        shutil.copytree(kept, server.model)
    await asyncio.to_thread(server.restart, words)
    await reached(proxy, home)
    back = await proxy.post(body)
    assert (back.cache, back.body) == ("HIT", first.body)


async def test_weights_replaced_under_a_running_server_are_another_environment_and_put_back_the_old_one(
    model: Path, tmp_path: Path
) -> None:
    server = await asyncio.to_thread(VllmServer, model)
    try:
        async with Proxy(tmp_path / "proxy", server.base_url, settings={"environments.poll": "500ms"}) as proxy:
            first = await proxy.post(SEEDED)
            assert (first.cache, (await proxy.post(SEEDED)).cache) == ("MISS", "HIT")
            home = first.headers["x-samewise-environment"]
            before = (model / "model.safetensors").read_bytes()
            weights(model)
            await left(proxy, home)
            other = await proxy.post(SEEDED)
            assert (other.cache, other.headers["x-samewise-environment"] == home) == ("MISS", False)
            (model / "model.safetensors").write_bytes(before)
            await reached(proxy, home)
            back = await proxy.post(SEEDED)
            assert (back.cache, back.body) == ("HIT", first.body)
    finally:
        server.close()


@pytest.mark.slow
async def test_every_change_behind_a_name_is_another_environment_and_going_back_finds_the_old_entries(
    model: Path, tmp_path: Path
) -> None:
    kept = Path(shutil.copytree(model, tmp_path / "kept"))
    changes = [
        Change("weights", files=weights, said=text),
        Change("generation defaults", files=defaults, said=text),
        Change("chat template", files=template, said=text),
        Change("dtype", words=("--dtype", "bfloat16"), said=nats),
        Change("seed", words=("--seed", "7")),
        Change("adapter", words=lora(adapter.write(tmp_path / "lora", seed=1)), model="other", said=text),
    ]
    server = await asyncio.to_thread(VllmServer, model, engine_args=MODEL_S_OWN)
    try:
        async with Proxy(tmp_path / "proxy", server.base_url, settings={"environments.poll": "500ms"}) as proxy:
            await walk(server, proxy, SEEDED, changes, kept)
    finally:
        server.close()


@pytest.mark.slow
async def test_changes_of_a_vllm_without_our_launcher_are_seen_in_what_it_answers(model: Path, tmp_path: Path) -> None:
    """Its own seed is not among them: nothing that can be cached depends on it."""
    kept = Path(shutil.copytree(model, tmp_path / "kept"))
    changes = [
        Change("weights", files=weights, said=text),
        Change("generation defaults", files=defaults),
        Change("chat template", files=template, said=text),
        Change("dtype", words=("--dtype", "bfloat16"), said=nats),
        Change("adapter", words=lora(adapter.write(tmp_path / "lora", seed=1)), model="other", said=text),
    ]
    server = await asyncio.to_thread(PlainVllm, model, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    settings = {"environments.poll": "500ms", "environments.probe": "2s"}
    try:
        async with Proxy(tmp_path / "proxy", server.base_url, settings=settings) as proxy:
            await left(proxy)
            (item,) = (await proxy.admin("GET", "/environments"))["items"]
            assert (item["origin"], item["engine"]) == ("observed", "vllm")
            assert {"engine_version", "system_fingerprint", "probes"} <= set(item["seen"])
            assert item["unseen"]
            await walk(server, proxy, SPELLED, changes, kept)
    finally:
        server.close()
