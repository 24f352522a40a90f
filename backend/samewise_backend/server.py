"""The reference engine's HTTP server: the OpenAI API as vLLM serves it, and the environment contract."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from samewise_backend.engine import Engine, Event, Failed, Job, Scored, Step, Ticket
from samewise_backend.manifest import Live
from samewise_backend.protocol import Endpoint, Limits, Refused, Request, check_model, decode, parse, prompt_of
from samewise_backend.render import Choice, Renderer
from samewise_backend.text import token_text

HEADER = "x-samewise-environment"
_MAX_BODY = 64 << 20
_BEGUN = web.RequestKey("samewise_begun", str)


@dataclass(frozen=True)
class Serving:
    """What the handlers need. `limits` follows the model that the engine has; `reload` loads it anew."""

    engine: Engine
    live: Live
    limits: Callable[[], Limits]
    fingerprint: str
    started: float
    reload: Callable[[], Awaitable[None]]
    entropy: Callable[[], int] = lambda: secrets.randbits(63)


def application(serving: Serving) -> web.Application:
    """The server without a socket. The engine must be started and closed by whoever made it."""
    handlers = _Handlers(serving)
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[handlers.outermost])
    app.on_response_prepare.append(handlers.identify)
    app.router.add_get("/samewise/environment", handlers.environment)
    app.router.add_post("/samewise/reload", handlers.reload)
    app.router.add_get("/health", handlers.health)
    app.router.add_get("/version", handlers.version)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/v1/models", handlers.models)
    app.router.add_post("/tokenize", handlers.tokenize)
    app.router.add_post("/detokenize", handlers.detokenize)
    app.router.add_post("/v1/completions", handlers.completions)
    app.router.add_post("/v1/chat/completions", handlers.chat)
    return app


class _Handlers:
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @web.middleware
    async def outermost(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Remembers the environment that a request met; errors in OpenAI's shape."""
        request[_BEGUN] = self._serving.live.current().id
        try:
            return await handler(request)
        except Refused as error:
            return _error(error)
        except web.HTTPException as error:
            kind = Refused(error.reason or "error", status=error.status)
            return _error(kind)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            return _error(Refused(f"{type(error).__name__}: {error}", status=500))

    async def identify(self, request: web.Request, response: web.StreamResponse) -> None:
        """The header of every response. Where a swap came between, both ids: no manifest has that one."""
        now = self._serving.live.current().id
        begun = request.get(_BEGUN, now)
        response.headers[HEADER] = now if now == begun else f"{begun}.{now}"

    async def environment(self, request: web.Request) -> web.Response:
        found = self._serving.live.current(look=True)
        return web.Response(body=found.body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def reload(self, request: web.Request) -> web.Response:
        """Read the model's folder anew, once what runs has ended; answers when the new weights answer."""
        await self._serving.reload()
        return web.json_response({"id": self._serving.live.current(look=True).id})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, request: web.Request) -> web.Response:
        from samewise_backend.versions import distribution

        return web.json_response({"version": distribution("samewise") or "0", "engine": "reference"})

    async def metrics(self, request: web.Request) -> web.Response:
        engine, name = self._serving.engine, json.dumps(self._serving.limits().model)
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self._serving.started}"]
        for metric, kind, value in (
            ("vllm:num_requests_running", "gauge", engine.running),
            ("vllm:num_requests_waiting", "gauge", engine.waiting),
            ("vllm:prompt_tokens_total", "counter", engine.prompt_tokens),
            ("vllm:prefix_cache_queries_total", "counter", engine.prompt_tokens),
            ("vllm:prefix_cache_hits_total", "counter", engine.cached_tokens),
            ("vllm:generation_tokens_total", "counter", engine.generated_tokens),
        ):
            lines += [f"# TYPE {metric} {kind}", f'{metric}{{engine="0",model_name={name}}} {float(value)}']
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def models(self, request: web.Request) -> web.Response:
        limits = self._serving.limits()
        card = {"id": limits.model, "object": "model", "created": int(self._serving.started), "owned_by": "samewise"}
        root = str(self._serving.engine.model.directory)
        return web.json_response(
            {"object": "list", "data": [card | {"root": root, "parent": None, "max_model_len": limits.length}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        body, limits = decode(await request.read()), self._serving.limits()
        check_model(body.get("model"), limits)
        tokens = list(prompt_of(body, limits))
        texts = [self._token_text(token) for token in tokens] if body.get("return_token_strs") else None
        return web.json_response(
            {"count": len(tokens), "max_model_len": limits.length, "tokens": tokens, "token_strs": texts}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        body, limits = decode(await request.read()), self._serving.limits()
        check_model(body.get("model"), limits)
        tokens = prompt_of({"prompt": body.get("tokens")}, limits)
        return web.json_response({"prompt": self._decode(tuple(tokens))})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        serving = self._serving
        asked = parse(endpoint, decode(await request.read()), serving.limits(), serving.entropy)
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": serving.limits().model}
        renderer = Renderer(asked, head, self._token_text, self._decode, serving.fingerprint)
        run = _Run(serving, asked)
        try:
            if asked.stream:
                return await self._stream(request, asked, renderer, run)
            async for _ in run.events():
                pass
            return web.json_response(renderer.whole(run.choices, run.scored))
        finally:
            run.abort()

    async def _stream(self, request: web.Request, asked: Request, renderer: Renderer, run: _Run) -> web.StreamResponse:
        """Headers go out with the first token: only then is it known which weights answer."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        opened: set[int] = set()
        try:
            async for choice, step in run.events():
                if not response.prepared:
                    await response.prepare(request)
                first = renderer.first(choice, run.scored.get(choice.index)) if choice.index not in opened else None
                opened.add(choice.index)
                events = [event for event in (first, renderer.step(choice, step)) if event is not None]
                await response.write(b"".join(map(_sse, events)))
        except Refused as error:
            if not response.prepared:
                raise
            await response.write(b"data: " + error.body() + b"\n\n")
            await response.write_eof()
            return response
        if asked.include_usage:
            await response.write(_sse(renderer.last(run.choices)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _token_text(self, token: int) -> str:
        return token_text(self._serving.engine.model.fast, token)

    def _decode(self, tokens: tuple[int, ...]) -> str:
        text: str = self._serving.engine.model.fast.decode(list(tokens), skip_special_tokens=False)
        return text


class _Run:
    """The jobs of one request, and their events in the order of their coming."""

    def __init__(self, serving: Serving, asked: Request) -> None:
        self.choices: list[Choice] = []
        self.scored: dict[int, Scored] = {}
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        eos = frozenset() if asked.ignore_eos else serving.limits().eos
        for prompt, most in zip(asked.prompts, asked.max_tokens, strict=True):
            for sampling in asked.samplings:
                index = len(self.choices)
                self.choices.append(Choice(index, prompt))
                job = Job(
                    prompt=prompt,
                    sampling=sampling,
                    max_tokens=most,
                    deliver=self._deliver(index),
                    eos=eos,
                    stop_tokens=asked.stop_tokens,
                    stops=asked.stops,
                    include_stop=asked.include_stop,
                    logprobs=asked.logprobs,
                    score_prompt=asked.echo and (asked.logprobs is not None or most == 0),
                    skip_special=asked.skip_special,
                    salt=asked.salt,
                )
                self._tickets.append(serving.engine.submit(job))

    def _deliver(self, index: int) -> Callable[[Event], None]:
        def deliver(event: Event) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        return deliver

    async def events(self) -> AsyncIterator[tuple[Choice, Step]]:
        """Every step of every choice, until all have finished. Raises Refused (500) where one failed."""
        left = len(self.choices)
        while left:
            index, event = await self._events.get()
            match event:
                case Failed(message):
                    raise Refused(message, status=500)
                case Scored():
                    self.scored[index] = event
                case Step():
                    self.choices[index].add(event)
                    left -= event.finish is not None
                    yield self.choices[index], event

    def abort(self) -> None:
        """End what still runs. Harmless where all has ended."""
        for ticket in self._tickets:
            ticket.abort()


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _error(error: Refused) -> web.Response:
    return web.Response(status=error.status, body=error.body(), content_type="application/json")


async def serve(app: web.Application, host: str, port: int, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Listen until `stop` is set; a client that goes away cancels its handler. Raises OSError for a taken port."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0][1] if runner.addresses else port
        ready(f"http://{host}:{bound}")
        await stop.wait()
    finally:
        await runner.cleanup()


def model_threads() -> int:
    """Threads for one forward pass: OMP_NUM_THREADS, else the cores less one, at least one."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return max(1, cores - 1)
