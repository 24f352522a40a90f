"""The reference engine over HTTP, as a client of vLLM or OpenAI would use it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from samewise_backend import tiny_model as tiny
from tests.support.patience import ENOUGH
from tests.support.vllm import BackendServer

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def client(reference_server: BackendServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=reference_server.base_url, api_key="none", max_retries=0)


def _chat(server: BackendServer, **values: Any) -> Any:
    answer = server.call("POST", "/v1/chat/completions", {**CHAT, **values})
    assert answer.status == 200, answer.body
    return answer.json() if not values.get("stream") else answer.events()


def test_an_openai_client_gets_the_same_text_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, seed=7)  # type: ignore[call-overload]
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        **CHAT, seed=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_the_acceptance_finds_that_all_its_answers_agree(reference_server: BackendServer, tmp_path: Path) -> None:
    words = ("--url", reference_server.base_url, "--repeat", "2", "--concurrency", "4", "--json")
    command = [sys.executable, "-m", "samewise.main", "verify", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (report["agreed"], report["answers"], report["disagreed"], report["failures"]) == (True, 56, 0, 0)
    assert all(row["closest"] is not None for row in report["rows"])
    assert report["notes"] == []


def test_a_seed_decides_and_no_seed_does_not(reference_server: BackendServer) -> None:
    def ids(**values: Any) -> Any:
        return _chat(reference_server, return_token_ids=True, max_tokens=20, **values)["choices"][0]["token_ids"]

    assert ids(seed=0) == ids(seed=0)
    assert ids(seed=0) != ids(seed=1)
    assert ids() != ids()
    assert ids(seed=-1) != ids(seed=-1)


@pytest.mark.parametrize("stream", [False, True])
def test_choice_i_is_what_seed_plus_i_gives(reference_server: BackendServer, stream: bool) -> None:
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    if stream:
        for event in _chat(reference_server, seed=5, n=3, return_token_ids=True, stream=True):
            for choice in event["choices"]:
                ids[choice["index"]] += choice.get("token_ids", [])
    else:
        for choice in _chat(reference_server, seed=5, n=3, return_token_ids=True)["choices"]:
            ids[choice["index"]] = choice["token_ids"]
    for index, found in ids.items():
        alone = _chat(reference_server, seed=5 + index, return_token_ids=True)["choices"][0]
        assert found == alone["token_ids"]


def test_each_prompt_of_a_list_is_answered_as_if_alone(reference_server: BackendServer) -> None:
    body = reference_server.complete(["one", [10, 20], "two"][::2], temperature=1, seed=3, max_tokens=5, n=2)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    for place, prompt in ((0, "one"), (2, "two")):
        alone = reference_server.complete(prompt, temperature=1, seed=3, max_tokens=5)["choices"][0]
        assert body["choices"][place]["token_ids"] == alone["token_ids"]


def test_logprobs_stand_beside_each_token(reference_server: BackendServer) -> None:
    content = _chat(reference_server, temperature=0, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    for entry in content:
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3


def test_the_prompt_is_echoed_and_scored(reference_server: BackendServer) -> None:
    choice = reference_server.complete("The cat", echo=True, logprobs=1, max_tokens=2)["choices"][0]
    assert choice["text"].startswith("The cat")
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 4
    only = reference_server.complete("The cat", echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert only["text"] == "The cat"
    assert only["token_ids"] == []


def test_a_stop_string_ends_and_is_not_shown(reference_server: BackendServer) -> None:
    free = reference_server.complete("The cat", max_tokens=30)["choices"][0]["text"]
    stop = free[10:13]
    choice = reference_server.complete("The cat", max_tokens=30, stop=[stop])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (free[: free.index(stop)], "stop", stop)


def test_ignored_ends_and_minimum_lengths_hold(reference_server: BackendServer) -> None:
    ended = reference_server.complete("a", max_tokens=9, logit_bias={"1": 100})["choices"][0]
    assert (ended["finish_reason"], ended["token_ids"]) == ("stop", [1])
    later = reference_server.complete("a", max_tokens=9, logit_bias={"1": 100}, min_tokens=3)["choices"][0]
    assert later["token_ids"].index(1) == 3
    never = reference_server.complete("a", max_tokens=9, logit_bias={"1": 100}, ignore_eos=True)["choices"][0]
    assert never["token_ids"] == [1] * 9


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "x"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -3}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 7.5}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 99999}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"4000": 1}}, "logit_bias"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_value_is_refused_by_name(
    reference_server: BackendServer, values: dict[str, Any], param: str, stream: bool
) -> None:
    if stream and "stream_options" in values:
        return
    answer = reference_server.call("POST", "/v1/chat/completions", {**CHAT, **values, "stream": stream})
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"temperature": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(reference_server: BackendServer, raw: bytes) -> None:
    assert reference_server.call("POST", "/v1/completions", raw).status == 400


def test_another_models_name_is_not_found(reference_server: BackendServer) -> None:
    answer = reference_server.call("POST", "/v1/completions", {"model": "x", "prompt": "a"})
    assert (answer.status, answer.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/version", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/samewise/environment", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/completions", 400),
    ],
)
def test_every_answer_names_the_environment(
    reference_server: BackendServer, method: str, path: str, status: int
) -> None:
    answer = reference_server.call(method, path, b"{" if method == "POST" else None)
    assert (answer.status, answer.environment) == (status, reference_server.manifest()["id"])


def test_a_stream_names_the_environment(reference_server: BackendServer) -> None:
    answer = reference_server.call("POST", "/v1/chat/completions", {**CHAT, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.environment == reference_server.manifest()["id"]
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_the_manifest_says_what_the_engine_runs_with(reference_server: BackendServer) -> None:
    found = reference_server.manifest()
    assert (found["engine"], found["model"], found["dtype"], found["seed"]) == ("reference", "tiny", "float32", 0)
    assert found["generation_defaults"]["temperature"] == 1.0
    assert found["determinism"]["environment"]["PYTHONHASHSEED"] == "0"
    assert found["determinism"]["torch"]["use_deterministic_algorithms"] is True
    assert found["weights"].startswith("sha256:")


def test_text_and_chat_are_tokenised_as_they_are_answered(reference_server: BackendServer) -> None:
    tokens = reference_server.call("POST", "/tokenize", {"messages": CHAT["messages"]}).json()["tokens"]
    assert tokens == _chat(reference_server, return_token_ids=True)["prompt_token_ids"]
    text = reference_server.call("POST", "/tokenize", {"prompt": "ab cd"}).json()
    assert text["count"] == len(text["tokens"])
    assert reference_server.call("POST", "/detokenize", {"tokens": text["tokens"]}).json()["prompt"] == "ab cd"


def _metric(server: BackendServer, name: str) -> float:
    for line in server.call("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name):
            return float(line.split()[-1])
    raise AssertionError("no such metric")


def _until_running(server: BackendServer, count: int) -> None:
    deadline = time.monotonic() + ENOUGH
    while _metric(server, "vllm:num_requests_running") != count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(reference_server: BackendServer, stream: bool) -> None:
    before = _metric(reference_server, "vllm:generation_tokens_total")
    link = http.client.HTTPConnection("127.0.0.1", reference_server.port, timeout=ENOUGH)
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2000, "seed": 1, "ignore_eos": True, "stream": stream}
    link.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    if stream:
        link.getresponse().fp.readline()
    _until_running(reference_server, 1)
    link.close()
    _until_running(reference_server, 0)
    assert _metric(reference_server, "vllm:generation_tokens_total") - before < 2000


@pytest.mark.slow
def test_reloaded_weights_answer_under_their_own_environment(own_model: Path) -> None:
    server = BackendServer(own_model)
    try:
        first, answer = server.manifest(), server.complete("The cat")["choices"][0]["token_ids"]
        kept = (own_model / "model.safetensors").read_bytes()
        tiny.write(own_model, tiny.Shape(seed=1))
        watched = server.manifest()
        assert watched["weights"] == first["weights"]
        assert watched["id"] != first["id"]
        assert server.complete("The cat")["choices"][0]["token_ids"] == answer
        server.call("POST", "/samewise/reload")
        second = server.manifest()
        assert "weights_on_disk" not in second
        assert server.complete("The cat")["choices"][0]["token_ids"] != answer
        (own_model / "model.safetensors").write_bytes(kept)
        server.call("POST", "/samewise/reload")
        assert server.manifest()["id"] == first["id"]
        assert server.complete("The cat")["choices"][0]["token_ids"] == answer
        server.restart()
        assert server.manifest()["id"] == first["id"]
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tiny_model: Path, number: int) -> None:
    server = BackendServer(tiny_model)
    try:
        assert server.signal(number) == 0
    finally:
        server.close()


@pytest.mark.slow
def test_the_manifest_command_tells_the_id_that_the_server_has(reference_server: BackendServer) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "samewise_backend.cli", "manifest", "--model", str(reference_server.model)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    printed = subprocess.run(
        [*command, "--served-model-name", "tiny"], check=True, capture_output=True, env=environment
    )
    assert json.loads(printed.stdout)["id"] == reference_server.manifest()["id"]
