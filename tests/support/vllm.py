"""Real backends for tests: `samewise-backend serve` in a process group of its own, on a free loopback port.

A pytest plugin (see tests/conftest.py): `tiny_model`, `reference_server` and `vllm_server` are shared by the whole
session, so a test must not change what they serve; one that has to starts a `BackendServer` or `VllmServer` itself.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import ENOUGH
from tests.support.redis import free_port

ROOT = Path(__file__).parents[2]
MODEL_NAME = "tiny"
START_TIMEOUT = 600.0
STOP_TIMEOUT = 20.0
"""Seconds that a server has to end by itself before it is ended."""
FEWER_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Variables by which vLLM's worker is no process of its own, so that a start takes a third less time."""


def vllm_python() -> Path | None:
    """The interpreter of the environment that has vLLM (SAMEWISE_VLLM_VENV or .venv-vllm), None where there is none."""
    venv = Path(os.environ.get("SAMEWISE_VLLM_VENV") or ROOT / ".venv-vllm")
    python = venv / "bin" / "python"
    return python if python.exists() else None


class BackendServer:
    """A backend process. `url` is its root, `base_url` what an OpenAI client takes. Started when constructed.

    Raises RuntimeError with the end of its log where it doesn't become ready.
    """

    engine = "reference"

    def __init__(
        self,
        model: Path,
        *,
        name: str = MODEL_NAME,
        engine_args: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.name = name
        self.port = free_port()
        self.engine_args = list(engine_args)
        self._options = list(options)
        self._environment = dict(environment or {})
        self._directory = Path(tempfile.mkdtemp(prefix="samewise-backend-"))
        self._log = self._directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def python(self) -> str:
        return sys.executable

    def arguments(self) -> list[str]:
        """Engine arguments of this kind of server, before the test's own."""
        return []

    def start(self) -> None:
        """Start, and return at its ready line."""
        command = [self.python(), "-m", "samewise_backend.cli", "serve", "--engine", self.engine]
        command += ["--model", str(self.model), "--served-model-name", self.name, "--port", str(self.port)]
        command += [*self._options, "--", *self.arguments(), *self.engine_args]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **self._environment},
                start_new_session=True,
            )
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self._process, ready), daemon=True).start()
        if not ready.wait(START_TIMEOUT) or self._process.poll() is not None:
            self.kill()
            raise RuntimeError(f"the {self.engine} backend did not start: {self.log()[-3000:]}")

    def _read(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stdout is not None
        with self._log.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if line.startswith(b"samewise-backend: ready on "):
                    ready.set()
        ready.set()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = 120.0) -> Answer:
        """One request on a connection of its own; the body is JSON, or bytes as they are."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            link.request(method, path, raw, {} if raw is None else {"content-type": "application/json"})
            reply = link.getresponse()
            return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            link.close()

    def complete(self, prompt: Any, **values: Any) -> dict[str, Any]:
        """The body of a text completion; greedy unless the values say otherwise."""
        body = {"model": self.name, "prompt": prompt, "temperature": 0, "return_token_ids": True, **values}
        answer = self.call("POST", "/v1/completions", body)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", "/samewise/environment").json()
        return found

    def signal(self, number: int) -> int:
        """Signal the process alone and wait for its end; its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(ENOUGH)

    def kill(self) -> None:
        """End its whole process group, gently first."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_TIMEOUT)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def restart(self, engine_args: Sequence[str] | None = None) -> None:
        """End it and start it anew on the same port, with the same options or other arguments for the engine."""
        self.kill()
        if engine_args is not None:
            self.engine_args = list(engine_args)
        self.start()

    def close(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class Answer:
    """A response: status, headers with lower-case names, body."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def environment(self) -> str:
        return self.headers["x-samewise-environment"]

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON of each server-sent event, without the closing `[DONE]`."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


class VllmServer(BackendServer):
    """vLLM's own server, started by our launcher, with a cache small enough for a test machine."""

    engine = "vllm"

    def python(self) -> str:
        python = vllm_python()
        if python is None:
            raise RuntimeError("there is no vLLM environment: see scripts/vllm-venv.sh")
        return str(python)

    def arguments(self) -> list[str]:
        return ["--kv-cache-memory-bytes", "67108864"]


def require_vllm() -> None:
    """Skip the test where vLLM isn't installed."""
    if vllm_python() is None:
        pytest.skip("no vLLM: scripts/vllm-venv.sh has not been run, or has no wheel for this platform")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that no test may change."""
    from samewise_backend import tiny_model

    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model for a test that changes it."""
    return Path(shutil.copytree(tiny_model, tmp_path / "own"))


@pytest.fixture(scope="session")
def reference_server(tiny_model: Path) -> Iterator[BackendServer]:
    """The reference engine on the tiny model, for the whole session."""
    server = BackendServer(tiny_model)
    yield server
    server.close()


@pytest.fixture(scope="session")
def vllm_server(tiny_model: Path) -> Iterator[VllmServer]:
    """A real vLLM on the tiny model in float32, for the whole session. Skips where there is none."""
    require_vllm()
    server = VllmServer(tiny_model)
    yield server
    server.close()
