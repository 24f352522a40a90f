"""The proxy before real vLLM: what makes another environment, what doesn't, and what the acceptance finds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samewise_backend import tiny_model as tiny
from tests.support.proxy import Answered, Proxy, until
from tests.support.vllm import MODEL_NAME, VllmServer, require_vllm, vllm_python
from tests.vllm.plain import PlainBfloat16, PlainVllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

CLOSE = 1.0
"""Deviation of the logits of a model with close calls."""
BODY = {"model": MODEL_NAME, "prompt": "The cat watches the river.", "temperature": 0, "seed": 1, "max_tokens": 24}
PATH = "/v1/completions"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    require_vllm()
    return tiny.write(tmp_path / "model", tiny.Shape(seed=0, sharpness=CLOSE))


async def ask(proxy: Proxy) -> Answered:
    return await proxy.post(BODY, path=PATH)


async def active(proxy: Proxy) -> dict[str, Any] | None:
    items = (await proxy.admin("GET", "/environments"))["items"]
    return next((item for item in items if item["active"]), None)


async def verify(url: str, cwd: Path, *words: str) -> tuple[int, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "samewise.main", "verify", "--json", "--url", url, *words),
        stdout=asyncio.subprocess.PIPE,
        cwd=cwd,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out)


async def test_a_restart_is_the_same_environment_and_other_weights_are_another(model: Path, tmp_path: Path) -> None:
    server = await asyncio.to_thread(VllmServer, model)
    proxy = Proxy(tmp_path / "proxy", server.base_url, settings={"environments.poll": "500ms"})
    try:
        await proxy.start()
        first = await ask(proxy)
        assert (first.cache, (await ask(proxy)).cache) == ("MISS", "HIT")
        identity = first.headers["x-samewise-environment"]

        tiny.write(model, tiny.Shape(seed=1, sharpness=CLOSE))  # in place, while it runs
        await until(lambda: other_than(proxy, identity), within=5)
        assert (await ask(proxy)).cache == "MISS"
        await asyncio.to_thread(server.restart)
        loaded = server.manifest()["id"]
        await until(lambda: is_active(proxy, loaded))
        swapped = await ask(proxy)
        assert (swapped.cache, swapped.text != first.text) == ("MISS", True)

        tiny.write(model, tiny.Shape(seed=0, sharpness=CLOSE))
        await asyncio.to_thread(server.restart)
        assert server.manifest()["id"] == identity
        await until(lambda: is_active(proxy, identity))
        again = await ask(proxy)
        assert (again.cache, again.body) == ("HIT", first.body)

        code, report = await verify(f"{proxy.url}/v1", tmp_path, "--repeat", "3", "--concurrency", "1,32")
        assert (code, report["disagreed"], report["failures"]) == (0, 0, 0), report["disagreements"][:3]
        assert {row["environment"] for row in report["rows"]} == {identity}
        assert all(row["closest"] is not None for row in report["rows"])
    finally:
        await proxy.stop()
        server.close()


async def other_than(proxy: Proxy, identity: str) -> bool:
    found = await active(proxy)
    return found is not None and found["id"] != identity


async def is_active(proxy: Proxy, identity: str) -> bool:
    found = await active(proxy)
    return found is not None and found["id"] == identity


async def test_bfloat16_is_told_of_as_a_direct_comparison_finds_it(model: Path, tmp_path: Path) -> None:
    """Whether a batch moves answers in 16 bits hangs on the processor; that it is told of doesn't."""
    server = await asyncio.to_thread(PlainBfloat16, model)
    prompts = [f"{number} the cat watches the river" for number in range(8)]
    values = {"temperature": 0.7, "seed": 5, "max_tokens": 16}
    try:
        alone = [_tokens(server, prompt, values) for prompt in prompts]
        with ThreadPoolExecutor(32) as pool:
            crowded = list(pool.map(lambda prompt: _tokens(server, prompt, values), prompts * 4))
        moved = any(found != alone[at % len(prompts)] for at, found in enumerate(crowded))
        file = tmp_path / "prompts.json"
        file.write_text(json.dumps([{"prompt": prompt, **values} for prompt in prompts]))
        words = ("--prompts", str(file), "--repeat", "8", "--concurrency", "1,32")
        code, report = await verify(server.base_url, tmp_path, *words)
        assert report["failures"] == 0
        assert code == (0 if report["agreed"] else 1)
        if moved:
            assert code == 1
        for each in report["disagreements"]:
            assert (each["unit"], each["concurrency"]) == ("token", 32)
            assert each["gap"] is None or each["gap"] < 0.5
    finally:
        server.close()


def _tokens(server: PlainVllm, prompt: str, values: dict[str, Any]) -> list[int]:
    tokens: list[int] = server.complete(prompt, **values)["choices"][0]["token_ids"]
    return tokens


def planned(model: Path, *words: str) -> dict[str, Any]:
    """The identity part of what `samewise-backend manifest` says before vLLM starts."""
    python = vllm_python()
    assert python is not None
    command = [str(python), "-m", "samewise_backend.cli", "manifest", "--engine", "vllm", "--model", str(model)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True, env=dict(os.environ))
    manifest: dict[str, Any] = json.loads(done.stdout)
    del manifest["info"]
    return manifest


def _weights(model: Path) -> None:
    tiny.write(model, tiny.Shape(seed=1, sharpness=CLOSE))


def _defaults(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "eos_token_id": 1}))


def _template(model: Path) -> None:
    for path in (model / "chat_template.jinja", model / "tokenizer_config.json"):
        if path.exists():
            path.write_text(path.read_text().replace("tools: ", "instruments: "))


@pytest.mark.parametrize(
    ("change", "group"),
    [(_weights, "weights"), (_defaults, "generation_config"), (_template, "chat_template")],
    ids=["weights", "defaults", "template"],
)
def test_files_replaced_in_place_are_another_identity_and_back_again_the_old_one(
    model: Path, tmp_path: Path, change: Callable[[Path], None], group: str
) -> None:
    kept = shutil.copytree(model, tmp_path / "kept")
    before = planned(model)
    change(model)
    after = planned(model)
    assert after[group] != before[group]
    shutil.rmtree(model)
    shutil.copytree(kept, model)
    assert planned(model) == before


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "bfloat16"),
        ("--", "--seed", "7"),
        ("--", "--enable-lora", "--lora-modules", "a=/nowhere"),
        ("--", "--override-generation-config", '{"temperature": 0.2}'),
        ("--", "--max-num-seqs", "4"),
    ],
    ids=["dtype", "seed", "lora", "defaults", "batch"],
)
def test_what_an_operator_asks_of_the_engine_is_identity(model: Path, words: tuple[str, ...]) -> None:
    assert planned(model, *words) != planned(model)


def test_where_it_listens_and_what_it_is_called_by_is_no_identity_of_the_answer(model: Path) -> None:
    assert planned(model, "--", "--port", "9", "--api-key", "secret") == planned(model)


async def test_plain_vllm_is_known_by_what_it_answers(model: Path, tmp_path: Path) -> None:
    server = await asyncio.to_thread(PlainVllm, model)
    settings = {"environments.poll": "500ms", "environments.probe": "2s"}
    proxy = Proxy(tmp_path / "proxy", server.base_url, settings=settings)
    try:
        await proxy.start()

        async def known() -> bool:
            return await active(proxy) is not None

        await until(known, within=60)
        found = await active(proxy)
        assert found is not None
        assert (found["origin"], found["engine"]) == ("observed", "vllm")
        assert {"engine_version", "system_fingerprint", "probes"} <= set(found["seen"])
        assert found["unseen"]
        body = {**BODY, "top_p": 1, "top_k": 0, "repetition_penalty": 1.0, "min_p": 0}

        async def explicit() -> Answered:
            return await proxy.post(body, path=PATH)

        first = await explicit()
        assert (first.cache, first.reason, (await explicit()).cache) == ("MISS", None, "HIT")

        await asyncio.to_thread(server.kill)
        tiny.write(model, tiny.Shape(seed=1, sharpness=CLOSE))
        await asyncio.to_thread(server.start)
        await until(lambda: other_than(proxy, found["id"]), within=60)
        swapped = await explicit()
        assert (swapped.cache, swapped.text != first.text) == ("MISS", True)

        await asyncio.to_thread(server.kill)
        tiny.write(model, tiny.Shape(seed=0, sharpness=CLOSE))
        await asyncio.to_thread(server.start)
        await until(lambda: is_active(proxy, found["id"]), within=60)
        again = await explicit()
        assert (again.cache, again.body) == ("HIT", first.body)
    finally:
        await proxy.stop()
        server.close()
