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

from samewise.core.fingerprint import environment_id
from samewise_backend import tiny_model as tiny
from tests.support import adapter
from tests.support.proxy import Answered, Proxy, until
from tests.support.vllm import FEWER_PROCESSES, MODEL_NAME, VllmServer, require_vllm
from tests.vllm.plain import PlainVllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

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
    members: tuple[str, ...] = ()
    """Members of the manifest that differ, each by what it stands for."""


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


def every_file(model: Path) -> None:
    """Each changes something else in the folder."""
    weights(model)
    defaults(model)
    template(model)


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
    """From the first state through every change, each by itself, and back to the first."""
    words = tuple(server.engine_args)
    home = await left(proxy)
    first = await proxy.post(body)
    assert (first.cache, first.reason) == ("MISS", None)
    assert first.headers["x-samewise-environment"] == home
    assert (await proxy.post(body)).cache == "HIT"
    manifest = server.manifest() if any(change.members for change in changes) else {}
    seen = [home]
    answers = [first]
    for change in changes:
        change.files(server.model)
        await asyncio.to_thread(server.restart, (*words, *change.words))
        seen.append(await left(proxy, *seen))
        await followed(proxy, body, seen[-1], change, answers)
        if change.members:
            changed = server.manifest()
            assert changed["id"] == environment_id(changed) == seen[-1]
            assert [name for name in change.members if changed[name] == manifest[name]] == []
        shutil.rmtree(server.model)
        shutil.copytree(kept, server.model)
    await asyncio.to_thread(server.restart, words)
    await back(proxy, home, body, first)


async def followed(proxy: Proxy, body: dict[str, Any], identity: str, change: Change, answers: list[Answered]) -> None:
    """What is asked after a change is another answer of that environment than any before, and kept as such."""
    found = await proxy.post({**body, "model": change.model})
    assert (found.cache, found.reason) == ("MISS", None), change.name
    assert found.headers["x-samewise-environment"] == identity, change.name
    assert found.body not in [answer.body for answer in answers], change.name
    if change.said is not None:
        assert change.said(found) != change.said(answers[0]), change.name
    again = await proxy.post({**body, "model": change.model})
    assert (again.cache, again.body) == ("HIT", found.body), change.name
    answers.append(found)


async def back(proxy: Proxy, home: str, body: dict[str, Any], first: Answered) -> None:
    """The first environment is in force again, and its old answer with it."""
    await reached(proxy, home)
    found = await proxy.post(body)
    assert (found.cache, found.body) == ("HIT", first.body)


async def replaced_while_it_runs(server: VllmServer, proxy: Proxy, kept: Path) -> None:
    """Weights that are replaced under a running server are another environment, and put back the old one."""
    first = await proxy.post(SEEDED)
    assert first.cache == "HIT"
    home = first.headers["x-samewise-environment"]
    weights(server.model)
    await left(proxy, home)
    other = await proxy.post(SEEDED)
    assert (other.cache, other.headers["x-samewise-environment"] == home) == ("MISS", False)
    shutil.copyfile(kept / "model.safetensors", server.model / "model.safetensors")
    await back(proxy, home, SEEDED, first)


async def test_every_change_behind_a_name_is_another_environment_and_going_back_finds_the_old_entries(
    model: Path, tmp_path: Path
) -> None:
    """A start takes long, so all change at once: each changes a member of the manifest, of which the id is made."""
    kept = Path(shutil.copytree(model, tmp_path / "kept"))
    everything = Change(
        "everything",
        files=every_file,
        words=("--dtype", "bfloat16", "--seed", "7", *lora(adapter.write(tmp_path / "lora", seed=1))),
        members=("weights", "generation_config", "chat_template", "dtype", "seed", "adapters"),
        model="other",
        said=text,
    )
    server = await asyncio.to_thread(VllmServer, model, engine_args=MODEL_S_OWN, environment=FEWER_PROCESSES)
    try:
        async with Proxy(tmp_path / "proxy", server.base_url, settings={"environments.poll": "500ms"}) as proxy:
            await walk(server, proxy, SEEDED, [everything], kept)
            await replaced_while_it_runs(server, proxy, kept)
    finally:
        server.close()


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
    server = await asyncio.to_thread(PlainVllm, model, environment=FEWER_PROCESSES)
    settings = {"environments.poll": "500ms", "environments.probe": "5s"}
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
