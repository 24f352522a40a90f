"""Servers on loopback that are scripted for faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.redis import free_port

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def http(handler: Handler, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """An aiohttp server; yields its base URL with `/v1`. Nobody else gets its port once it is gone."""
    options = {"access_log": None, **options}
    runner = web.ServerRunner(web.Server(handler, **options), shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port or free_port()).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tcp(talk: Talk) -> AsyncIterator[str]:
    """A server that says what the script writes; yields its base URL with `/v1`. The script ends the connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await talk(reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", free_port())
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request with a Content-Length. Raises IncompleteReadError at the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    return head, await reader.readexactly(length)


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a reset."""
    writer.transport.abort()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'


class Fake:
    """An inference server whose weights, name, version and manners a test changes as it likes.

    `weights` decide the greedy answers, `template` those of chats, `temperature` the sampled ones. `noise`
    moves log-probabilities when more than one request runs. With `nonce` no two answers are alike.
    """

    def __init__(self, **manners: Any) -> None:
        self.manifest: dict[str, Any] | None = None
        self.header = True
        self.owner = "vllm"
        self.version: str | None = "0.32.0"
        self.models = ["m"]
        self.weights = 1
        self.template = 1
        self.temperature = 1.0
        self.fingerprint: str | None = "fp-1"
        self.started: float | None = 1000.0
        self.health = 200
        self.noise = 0.0
        self.nonce = False
        self.refuse: int | None = None
        self.generated = 0
        self.running = 0
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.hold: asyncio.Event | None = None
        for name, value in manners.items():
            setattr(self, name, value)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.paths.append(request.path)
        match request.path:
            case "/samewise/environment" if self.manifest is not None:
                return web.json_response(self.manifest)
            case "/health":
                return web.Response(status=self.health)
            case "/version" if self.version is not None:
                return web.json_response({"version": self.version})
            case "/v1/models":
                cards = [
                    {"id": name, "object": "model", "created": len(self.paths), "owned_by": self.owner, "root": name}
                    for name in self.models
                ]
                return web.json_response({"object": "list", "data": cards})
            case "/metrics" if self.started is not None:
                return web.Response(text=f"# TYPE x gauge\nprocess_start_time_seconds {self.started:.1f}\nother 1\n")
            case "/v1/completions" | "/v1/chat/completions":
                return await self.generate(request)
        return web.Response(status=404, text="<html>nothing here</html>", content_type="text/html")

    async def generate(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.generated += 1
        if self.refuse is not None:
            return web.json_response({"error": {"message": "no"}}, status=self.refuse)
        self.running += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(0)
            answer = self.answer(body)
        finally:
            self.running -= 1
        headers = {}
        if self.manifest is not None and self.header:
            headers["x-samewise-environment"] = self.manifest["id"]
        return web.json_response(answer, headers=headers)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        chat = "messages" in body
        question = json.dumps(body.get("messages") or body["prompt"])
        seen = f"{self.weights}|{question}|{self.template if chat else ''}"
        if "temperature" not in body:
            seen += f"|{self.temperature}"
        if self.nonce:
            seen += f"|{self.generated}"
        value = math.sin(sum(ord(character) * (at + 1) for at, character in enumerate(seen)))
        shift = self.noise if self.running > 1 else 0.0
        numbers = [value - 2 + shift, value * 2 - 3]
        text = f"said {value:.6f}"
        choices = []
        for index in range(body.get("n", 1)):
            choice: dict[str, Any] = {"index": index, "finish_reason": "length"}
            if chat:
                choice["message"] = {"role": "assistant", "content": text}
                choice["logprobs"] = {"content": [{"token": "a", "logprob": number} for number in numbers]}
            else:
                choice["text"] = f"{text} {index}"
                choice["logprobs"] = {"token_logprobs": numbers} if "logprobs" in body else None
            choices.append(choice)
        return {"id": f"x-{self.generated}", "choices": choices, "system_fingerprint": self.fingerprint}
