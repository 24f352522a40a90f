"""The launcher, the contract and the reference engine against the real vLLM."""

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samewise_backend import tiny_model as tiny
from tests.support import adapter
from tests.support.patience import ENOUGH
from tests.support.vllm import BackendServer, VllmServer, require_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

WORDS = ["the", "cat", "watches", "river", "moon", "two", "17", "Ünï", "😀", "story", "engine"]
TEXTS = [" ".join(random.Random(number).choices(WORDS, k=4 + 9 * number)) for number in range(12)]


def _answer(server: BackendServer, prompt: str, **values: Any) -> Any:
    choice = server.complete(prompt, max_tokens=24, logprobs=2, **values)["choices"][0]
    return choice["token_ids"], choice["text"], choice["finish_reason"]


def test_greedy_tokens_and_text_of_the_reference_engine_are_vllms(
    reference_server: BackendServer, vllm_server: VllmServer
) -> None:
    for text in TEXTS:
        assert _answer(reference_server, text) == _answer(vllm_server, text)


@pytest.mark.parametrize(
    "values",
    [
        {"stop": ["a", "1"]},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"logit_bias": {"300": 8, "301": -100}},
        {"stop_token_ids": list(range(6, 200))},
        {"min_tokens": 6, "logit_bias": {"1": 100}},
        {"ignore_eos": True, "logit_bias": {"1": 100}},
        {"allowed_token_ids": [300, 301, 302, 303]},
        {"skip_special_tokens": False, "logit_bias": {"3": 20}},
        {"stop": ["1"], "include_stop_str_in_output": True},
    ],
    ids=lambda values: "-".join(values),
)
def test_sampling_values_mean_what_they_mean_to_vllm(
    reference_server: BackendServer, vllm_server: VllmServer, values: dict[str, Any]
) -> None:
    for text in TEXTS[:3]:
        assert _answer(reference_server, text, **values) == _answer(vllm_server, text, **values)


def test_chat_prompts_are_the_same_tokens(reference_server: BackendServer, vllm_server: VllmServer) -> None:
    body = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "short"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "three"},
            {"role": "user", "content": "four"},
        ],
        "temperature": 0,
        "max_tokens": 8,
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 2,
    }
    found = [server.call("POST", "/v1/chat/completions", body).json() for server in (reference_server, vllm_server)]
    assert found[0]["prompt_token_ids"] == found[1]["prompt_token_ids"]
    choices = [one["choices"][0] for one in found]
    assert choices[0]["message"]["content"] == choices[1]["message"]["content"]
    assert choices[0]["token_ids"] == choices[1]["token_ids"]
    for ours, theirs in zip(choices[0]["logprobs"]["content"], choices[1]["logprobs"]["content"], strict=True):
        assert ours["token"] == theirs["token"]
        assert abs(ours["logprob"] - theirs["logprob"]) < 1e-3


def test_members_of_the_answers_are_vllms(reference_server: BackendServer, vllm_server: VllmServer) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "temperature": 0}
    text = {"model": "tiny", "prompt": "x", "max_tokens": 2, "temperature": 0, "logprobs": 1}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        ours, theirs = (server.call("POST", path, body).json() for server in (reference_server, vllm_server))
        assert ours.keys() <= theirs.keys()
        assert ours["choices"][0].keys() <= theirs["choices"][0].keys()
        streamed = [
            server.call("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}}).events()
            for server in (reference_server, vllm_server)
        ]
        for place in (0, -2, -1):
            assert streamed[0][place].keys() <= streamed[1][place].keys()


def test_the_manifest_says_what_vllm_resolved(vllm_server: VllmServer, reference_server: BackendServer) -> None:
    found = vllm_server.manifest()
    assert (found["engine"], found["model"], found["dtype"], found["seed"]) == ("vllm", "tiny", "float32", 0)
    assert found["attention_backend"] == ["CPU_ATTN"]
    assert found["batch_invariant"] is False
    assert found["determinism"]["torch"]["use_deterministic_algorithms"] is True
    assert found["determinism"]["environment"]["PYTHONHASHSEED"] == "0"
    assert found["resolved"]["scheduler_config"]["enable_chunked_prefill"] is False
    assert found["max_num_batched_tokens"] >= found["max_model_len"] == 2048
    same = ("weights", "tokenizer", "chat_template", "generation_config", "config")
    assert {name: found[name] for name in same} == {name: reference_server.manifest()[name] for name in same}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/nowhere", None, 404),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", {"model": "x", "prompt": "a"}, 404),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "temperature": -1}, 400),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2}, 200),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": True}, 200),
    ],
)
def test_every_answer_of_vllm_names_the_environment(
    vllm_server: VllmServer, method: str, path: str, body: Any, status: int
) -> None:
    answer = vllm_server.call(method, path, body)
    assert (answer.status, answer.environment) == (status, vllm_server.manifest()["id"])


def test_long_seeded_prompts_at_once_leave_the_engine_alive(vllm_server: VllmServer) -> None:
    prompts = [[number + 6] * 700 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda prompt: vllm_server.complete(prompt, seed=1, temperature=0.7, max_tokens=4), prompts)
        )
    assert all(len(one["choices"][0]["token_ids"]) == 4 for one in found)
    assert vllm_server.call("GET", "/health").status == 200


@pytest.fixture(scope="module")
def changing_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A vLLM of this module's own, whose model and adapters the tests change."""
    require_vllm()
    model = Path(shutil.copytree(tiny_model, tmp_path_factory.mktemp("changing") / "model"))
    server = VllmServer(
        model,
        engine_args=["--enable-lora", "--max-lora-rank", "8"],
        environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
    )
    yield server
    server.close()


def _until(server: VllmServer, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + ENOUGH
    while time.monotonic() < deadline:
        found = server.manifest()
        if holds(found):
            return found
        threading.Event().wait(0.02)
    raise AssertionError(f"never: {found}")


def test_weights_replaced_while_vllm_runs_change_the_header_and_not_what_was_loaded(
    changing_server: VllmServer,
) -> None:
    server = changing_server
    first = server.manifest()
    weights = server.model / "model.safetensors"
    kept, answer = weights.read_bytes(), server.complete("The cat")["choices"][0]["token_ids"]
    tiny.write(server.model, tiny.Shape(seed=1))
    replaced = time.monotonic()
    while server.call("GET", "/health").environment == first["id"]:
        assert time.monotonic() - replaced < ENOUGH
    second = _until(server, lambda found: str(found.get("weights_on_disk")).startswith("sha256:"))
    assert second["weights"] == first["weights"]
    assert server.complete("The cat")["choices"][0]["token_ids"] == answer
    weights.write_bytes(kept)
    assert _until(server, lambda found: found["id"] == first["id"])["id"] == first["id"]


def test_adapters_loaded_while_vllm_runs_are_in_the_manifest(changing_server: VllmServer, tmp_path: Path) -> None:
    server = changing_server
    before = server.manifest()["id"]
    directory = adapter.write(tmp_path / "lora", seed=1)
    body = {"lora_name": "lora", "lora_path": str(directory), "load_inplace": True}
    loaded = server.call("POST", "/v1/load_lora_adapter", body)
    assert loaded.status == 200, loaded.body
    first = server.manifest()
    assert first["id"] != before
    answer = server.complete("The cat", model="lora")["choices"][0]["token_ids"]
    adapter.write(directory, seed=2)
    second = _until(
        server, lambda found: str(found["adapters"]["lora"]).startswith("sha256:") and found["id"] != first["id"]
    )
    assert server.complete("The cat", model="lora")["choices"][0]["token_ids"] != answer
    assert server.call("POST", "/v1/unload_lora_adapter", {"lora_name": "lora"}).status == 200
    assert len({before, first["id"], second["id"]}) == 3
    assert server.manifest()["id"] == before


def test_a_termination_ends_vllm_and_its_workers(changing_server: VllmServer) -> None:
    server = changing_server
    assert server.signal(signal.SIGTERM) in {0, 128 + signal.SIGTERM}
    with pytest.raises(OSError):
        server.call("GET", "/health")
