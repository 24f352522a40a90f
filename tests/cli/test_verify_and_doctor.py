"""`samewise verify` and `samewise doctor` as processes, against real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_backend import MockBackend, Script
from tests.support.proxy import B0, Proxy
from tests.support.redis import RedisServer, free_port, redis_binary


async def samewise(*words: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "samewise.main",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def steady(body: dict[str, Any], number: int) -> str:
    return f"to {json.dumps(body.get('prompt') or body.get('messages'))}"


async def test_a_backend_that_says_the_same_each_time_passes(tmp_path: Path) -> None:
    async with MockBackend() as backend:
        backend.text = steady
        backend.always(Script(delay=0.02))
        code, out, err = await samewise("verify", "--url", backend.url, "--repeat", "5", cwd=tmp_path)
        assert (code, err) == (0, "")
        assert out.rstrip().endswith("all agree")
        bodies = [received.body for received in backend.received]
        assert len({body["cache_salt"] for body in bodies if not body.get("stream")}) > 28 * 5
        assert {bool(body.get("stream")) for body in bodies} == {True, False}
        assert 8 < backend.peak <= 32
        assert {body["temperature"] for body in bodies} == {0, 0.7}


async def test_a_backend_that_wavers_fails_and_is_told_of(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["one", {"name": "two", "messages": [{"role": "user", "content": "two"}]}]))
    async with MockBackend() as backend:
        backend.text = lambda body, number: "now and then" if number % 5 else "now or never"
        words = ("verify", "--url", backend.url, "--prompts", str(prompts), "--repeat", "10", "--concurrency", "1,4")
        code, out, err = await samewise(*words, "--json", cwd=tmp_path)
        assert (code, err) == (1, "")
        report = json.loads(out)
        assert report["agreed"] is False
        assert {row["prompt"] for row in report["rows"]} == {"prompt-1", "two"}
        assert report["answers"] == 40
        assert report["disagreements"][0]["position"] == 4
        assert {each["concurrency"] for each in report["disagreements"]} == {1, 4}
        code, out, _ = await samewise(*words, cwd=tmp_path)
        assert (code, "disagree" in out, "character 4" in out) == (1, True, True)


async def test_errors_are_no_agreement_and_nobody_there_is_another_exit_code(tmp_path: Path) -> None:
    async with MockBackend() as backend:
        backend.text = steady
        backend.when("telescope", Script(status=500))
        code, out, _ = await samewise("verify", "--url", backend.url, "--repeat", "2", cwd=tmp_path)
        assert (code, "status 500" in out) == (1, True)
    code, out, err = await samewise("verify", "--url", f"http://127.0.0.1:{free_port()}/v1", cwd=tmp_path)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    code, _, err = await samewise("verify", "--concurrency", "1,x", cwd=tmp_path)
    assert (code, "1,8,32" in err) == (2, True)


async def test_a_server_that_takes_only_openais_fields_is_asked_with_those(tmp_path: Path) -> None:
    async with MockBackend(contract=False) as backend:
        backend.text = steady
        backend.when("cache_salt", Script(status=400))
        backend.when("return_token_ids", Script(status=400))
        code, out, _ = await samewise(
            "verify", "--url", backend.url, "--repeat", "2", "--concurrency", "2", cwd=tmp_path
        )
        assert (code, "takes no cache_salt" in out) == (0, True)


async def test_through_the_proxy_nothing_is_read_or_stored_and_each_upstream_can_be_asked(tmp_path: Path) -> None:
    async with MockBackend() as one, MockBackend() as other:
        one.text = other.text = steady
        async with Proxy(tmp_path / "proxy", one.url, other.url) as proxy:
            words = ("--repeat", "2", "--concurrency", "1", "--json", "--admin", proxy.admin_url)
            code, out, err = await samewise("verify", "--url", f"{proxy.url}/v1", *words, cwd=tmp_path)
            assert (code, err) == (0, "")
            answers = json.loads(out)["answers"]
            assert one.count + other.count >= answers
            assert await proxy.metric("samewise_requests_total", outcome="bypass") >= answers
            assert await proxy.metric("samewise_requests_total", outcome="hit") == 0
            one.forget()
            other.forget()
            code, _, _ = await samewise("verify", "--each-upstream", *words, cwd=tmp_path)
            assert code == 0
            assert one.count
            assert other.count
            other.text = lambda body, number: "something else"
            code, out, _ = await samewise("verify", "--each-upstream", *words, cwd=tmp_path)
            report = json.loads(out)
            assert code == 1
            assert {each["member"] for each in report["disagreements"]} == {other.url}


async def doctor(cwd: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code, out, err = await samewise("doctor", "--json", *words, cwd=cwd)
    assert err == ""
    return code, {item["check"]: item for item in json.loads(out)["items"]}


async def test_the_doctor_asks_the_running_proxy_what_is_wrong(tmp_path: Path) -> None:
    if redis_binary() is None:
        pytest.skip("no redis-server")
    redis = RedisServer()
    try:
        async with MockBackend() as backend:
            backend.become("e" * 32, engine="vllm", dtype="bfloat16", device={"kind": "cpu"})
            settings = {"store.url": redis.url, "store.timeout": "500ms", "verify.rate": 0.01}
            async with Proxy(tmp_path / "proxy", backend.url, settings=settings) as proxy:
                await proxy.post(B0)
                code, found = await doctor(tmp_path, "--admin", proxy.admin_url)
                assert code == 0
                assert {name: item["state"] for name, item in found.items()} == {
                    "proxy": "ok",
                    "versions": "ok",
                    "settings": "ok",
                    "store": "ok",
                    "eviction": "warning",
                    "persistence": "warning",
                    "store clock": "ok",
                    f"upstream {backend.url}": "ok",
                    "environment eeeeeeeeeeee": "ok",
                    "environment eeeeeeeeeeee determinism": "warning",
                }
                redis.command("CONFIG", "SET", "maxmemory", "100mb")
                redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
                redis.command("CONFIG", "SET", "appendonly", "yes")
                _, found = await doctor(tmp_path, "--admin", proxy.admin_url)
                assert [found[name]["state"] for name in ("eviction", "persistence")] == ["ok", "ok"]
                redis.kill()
                code, found = await doctor(tmp_path, "--admin", proxy.admin_url)
                assert (code, found["store"]["state"]) == (1, "error")
                assert found["store"]["do"]
                code, out, _ = await samewise("doctor", "--admin", proxy.admin_url, cwd=tmp_path)
                assert code == 1
                assert len(out.splitlines()) == len(found)
    finally:
        redis.kill()


async def test_without_a_proxy_the_doctor_looks_at_the_settings(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with MockBackend() as backend:
        config = tmp_path / "samewise.toml"
        config.write_text(f'[store]\nurl = "sqlite:///x.db"\n[[upstreams]]\nurl = "{backend.url}"\n')
        code, found = await doctor(tmp_path, "--admin", nobody)
        assert (code, found["proxy"]["state"], found[f"upstream {backend.url}"]["state"]) == (0, "warning", "ok")
        config.write_text(f'[store]\nurl = "redis://127.0.0.1:{free_port()}/0"\n')
        code, found = await doctor(tmp_path, "--admin", nobody)
        assert (code, found["store"]["state"]) == (1, "error")
        config.write_text('[store]\nttl = "soon"\n')
        code, found = await doctor(tmp_path, "--admin", nobody)
        assert (code, found["settings"]["state"]) == (1, "error")
        assert "[store] ttl" in found["settings"]["message"] or "ttl" in found["settings"]["message"]
