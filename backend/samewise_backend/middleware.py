"""The environment contract inside vLLM's own server: `--middleware samewise_backend.middleware.EnvironmentContract`.

Serves `GET /samewise/environment` and puts `x-samewise-environment` on every response. Started by
`samewise-backend serve` it knows what the files were before vLLM read them; without it, it takes the files
for what was loaded only where none of them changed since the process began.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from samewise_backend import manifest, model_files, vllm_facts
from samewise_backend.determinism import numeric_environment
from samewise_backend.device import probe
from samewise_backend.digests import Digests, default_cache
from samewise_backend.launch import FACTS_VARIABLE, identity_arguments
from samewise_backend.manifest import Live, Loaded, Manifest
from samewise_backend.model_files import Lister
from samewise_backend.versions import numeric_versions

HEADER = b"x-samewise-environment"
PATH = "/samewise/environment"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_CHANGES_WEIGHTS = frozenset(
    {
        "/collective_rpc",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/start_draft_weight_update",
    }
)
"""Endpoints of vLLM after which its weights are no longer those of any file (development and RL servers)."""
_REPORT_TIMEOUT = 60.0


@dataclass
class _Adapters:
    """vLLM's LoRA requests, and a lister for each as long as it is the same request."""

    known: dict[str, tuple[Any, Lister]] = field(default_factory=dict)

    def refresh(self, requests: Mapping[str, Any]) -> bool:
        """Take over what vLLM has now; whether anything differs."""
        if requests.keys() == self.known.keys() and all(self.known[name][0] is one for name, one in requests.items()):
            return False
        self.known = {
            name: self.known[name]
            if name in self.known and self.known[name][0] is one
            else (one, model_files.adapter(Path(one.lora_path)))
            for name, one in requests.items()
        }
        return True

    def listers(self) -> dict[str, Lister]:
        return {name: lister for name, (_, lister) in self.known.items()}

    def reread(self) -> frozenset[str]:
        return frozenset(name for name, (one, _) in self.known.items() if getattr(one, "load_inplace", False))


class EnvironmentContract:
    """ASGI middleware. The manifest is made once the server has its engine; a request before that waits for it.

    A response whose environment changed between its request and its first byte carries both ids, joined by
    a dot: an id that no manifest has.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._live: Live | None = None
        self._adapters = _Adapters()
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._make(scope)
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = scope["path"] == PATH and scope["method"] in {"GET", "HEAD"}
        begun = await self._current(scope, look=asked)
        if asked:
            await _answer(begun, send, empty=scope["method"] == "HEAD")
            return

        started = False

        async def send_with_header(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if scope["path"] in _CHANGES_WEIGHTS and scope["method"] == "POST" and self._live is not None:
                    self._live.mutated()
                now = await self._current(scope)
                value = now.id if now.id == begun.id else f"{begun.id}.{now.id}"
                headers = [pair for pair in message.get("headers", []) if pair[0].lower() != HEADER]
                message = {**message, "headers": [*headers, (HEADER, value.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_header)
        except Exception:
            if not started:
                await _fail(send_with_header)
            raise

    async def _current(self, scope: Scope, *, look: bool = False) -> Manifest:
        live = self._live or await self._make(scope)
        models = getattr(scope["app"].state, "openai_serving_models", None)
        if self._adapters.refresh(getattr(models, "lora_requests", {})):
            await asyncio.to_thread(live.adapters, self._adapters.listers(), reread=self._adapters.reread())
        return live.current(look=look)

    async def _make(self, scope: Scope) -> Live:
        async with self._making:
            if self._live is None:
                self._live = await _describe(scope["app"].state)
            return self._live


async def _answer(found: Manifest, send: Send, *, empty: bool) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(found.body)).encode()),
        (b"cache-control", b"no-store"),
        (HEADER, found.id.encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if empty else found.body})


async def _fail(send: Send) -> None:
    """What the server's own handler would answer, which sits outside of every middleware and knows no header."""
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


async def _describe(state: Any) -> Live:
    """The manifest of the engine behind a vLLM server."""
    client, arguments = state.engine_client, state.args
    reports = await _worker_reports(client)
    instance = manifest.new_instance()
    digests = Digests(default_cache())
    model = model_files.resolve(str(client.vllm_config.model_config.model))
    listers = model_files.groups(model, _template_file(getattr(arguments, "chat_template", None)))
    told = os.environ.get(FACTS_VARIABLE)
    if told is not None:
        before = manifest.decode_loaded(told)
    else:
        before = await asyncio.to_thread(manifest.read, listers, digests)
        before = {name: _if_older(one, _process_start(), instance) for name, one in before.items()}
    loaded = await asyncio.to_thread(manifest.confirm, before, listers, instance)
    facts = await asyncio.to_thread(_facts, client.vllm_config, arguments, reports)
    hub = await asyncio.to_thread(model_files.hub_info, model, listers["weights"](), digests)
    info = manifest.process_info(instance) | {"model_path": str(model.directory)} | hub
    return Live(facts, info, loaded, listers, digests)


async def _worker_reports(client: Any) -> list[dict[str, Any]]:
    """One report a worker, empty where the worker extension isn't ours."""
    try:
        return list(await asyncio.wait_for(client.collective_rpc("samewise_report"), _REPORT_TIMEOUT))
    except Exception:  # whatever a foreign worker answers with: the report is a bonus
        return []


def _facts(config: Any, arguments: Any, reports: list[dict[str, Any]]) -> dict[str, Any]:
    vllm = import_module("vllm")
    on_cpu = import_module("vllm.platforms").current_platform.is_cpu()

    device = probe("cpu" if on_cpu else "auto")
    worker = reports[0] if reports else {}
    names = getattr(arguments, "served_model_name", None) or [arguments.model]
    environment = numeric_environment()
    return {
        "model": names[0],
        "engine": "vllm",
        "engine_version": vllm.__version__,
        **vllm_facts.identity(config, device, worker),
        "batch_invariant": environment.get("VLLM_BATCH_INVARIANT", "0") == "1",
        "determinism": {"environment": environment, "torch": worker.get("torch")},
        "versions": numeric_versions(device.driver),
        "engine_args": identity_arguments(tuple(sys.argv[1:])),
    }


def _template_file(given: str | None) -> str | None:
    return given if given and Path(given).is_file() else None


def _if_older(loaded: Loaded, started: int, instance: str) -> Loaded:
    if all(state.since() < started for state in loaded.snapshot):
        return loaded
    return Loaded(loaded.snapshot, f"unknown:{instance}")


def _process_start() -> int:
    """When this process began, in nanoseconds of the wall clock."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
    return int((boot + ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
