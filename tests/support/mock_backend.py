"""A scriptable OpenAI-compatible backend on a real socket: counts, remembers, and says something new each time."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
ENVIRONMENT = "x-samewise-environment"
LONGEST = 1 << 20
"""Bytes of a header line that this backend takes."""
GENERATES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/v1/score",
    }
)


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    header_list: list[tuple[str, str]]

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)  # type: ignore[no-any-return]


@dataclass
class Script:
    """What to do instead of, or before, the usual answer. Times are in seconds.

    `status`, `body`, `headers`: answer with that. `sse`: raw bytes of a stream, sent in these pieces.
    `end`: how the connection ends after them: `eof`, `reset`, `stall` (stays open), `cut` (no last chunk).
    `delay`: before the head; `gap`: before each piece. `gate`: wait for it before the head.
    `wire`: these bytes on the bare connection in place of any response, which is then reset, closed or left to stall.
    `sent`: called with the number of each piece after it was written.
    """

    status: int | None = None
    body: bytes | dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    sse: list[bytes] | None = None
    end: str = "eof"
    delay: float = 0.0
    gap: float = 0.0
    gate: asyncio.Event | None = None
    encoding: str | None = None
    text: Callable[[dict[str, Any], int], str] | None = None
    chunks: int | None = None
    wire: bytes | None = None
    sent: Callable[[int], Awaitable[None]] | None = None


Rule = Callable[[Received], Script | None]


class MockBackend:
    """`count`: generation calls so far; `received`: every one of them; `rules`: the first that gives a script wins.

    `manifest` None: no environment contract. `text` makes an answer's text of the body and the call's number.
    """

    def __init__(self, *, manifest: dict[str, Any] | None = None, contract: bool = True) -> None:
        self.count = 0
        self.received: list[Received] = []
        self.others: list[Received] = []
        self.rules: list[Rule] = []
        self.models = ["m", "m-small", "m-large", "m-x"]
        self.contract = contract
        self.manifest: dict[str, Any] = {
            "id": "a" * 32,
            "model": "m",
            "engine": "mock",
            "engine_version": "1",
            "generation_defaults": dict(DEFAULTS),
            "weights": "sha256:" + "0" * 64,
            "info": {"instance": "mock"},
            **(manifest or {}),
        }
        self.running = 0
        self.peak = 0
        self.gone = 0
        self.healthy = True
        self.text: Callable[[dict[str, Any], int], str] = lambda body, number: f"nonce {number} end"
        self.url = ""
        self._serial = 0
        self._runner: web.AppRunner | None = None
        self._kept: socket.socket | None = None
        self._arrived = asyncio.Condition()

    # --- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> MockBackend:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self._kept is not None:
            self._kept.close()

    async def start(self, port: int = 0) -> None:
        """Listen. The port that it had before is kept for it, and refuses connections, while it is stopped."""
        if self._kept is None:
            self._kept = _place(port)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=0.1,
            handler_cancellation=True,
            max_line_size=LONGEST,
            max_field_size=LONGEST,
        )
        await self._runner.setup()
        site = web.SockSite(self._runner, _place(self._kept.getsockname()[1]))
        await site.start()
        host, bound = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{bound}/v1"

    def forget(self) -> None:
        """As new: no rules, nothing received. What it says stays new."""
        self.count = self.peak = self.gone = 0
        self.received.clear()
        self.others.clear()
        self.rules.clear()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].split("/")[0])

    # --- what tests say -------------------------------------------------------------------------------

    def always(self, script: Script) -> None:
        """Every generation call from now on."""
        self.rules.insert(0, lambda _: script)

    def once(self, script: Script) -> None:
        """The next generation call alone."""
        left = [script]
        self.rules.insert(0, lambda _: left.pop() if left else None)

    def when(self, text: str, script: Script) -> None:
        """Generation calls whose body contains the text."""
        self.rules.insert(0, lambda received: script if text.encode() in received.raw else None)

    def usual(self) -> None:
        """Forget every rule."""
        self.rules.clear()

    def become(self, identity: str, **manifest: Any) -> None:
        """Another environment from now on."""
        self.manifest = {**self.manifest, "id": identity, **manifest}

    async def arrived(self, count: int) -> None:
        """Return when that many generation calls have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.count >= count)

    # --- what it does ---------------------------------------------------------------------------------

    def _own(self) -> dict[str, str]:
        return {ENVIRONMENT: str(self.manifest["id"])} if self.contract else {}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        received = Received(
            request.method,
            request.path_qs,
            {name.lower(): value for name, value in request.headers.items()},
            raw,
            list(request.headers.items()),
        )
        if request.method == "POST" and request.path in GENERATES:
            return await self._generate(request, received)
        self.others.append(received)
        match request.path:
            case "/samewise/environment" if self.contract:
                return web.json_response(self.manifest, headers=self._own())
            case "/v1/models":
                data = [{"id": name, "object": "model", "created": 1, "owned_by": "mock"} for name in self.models]
                return web.json_response({"object": "list", "data": data}, headers=self._own())
            case "/version":
                return web.json_response({"version": "1"}, headers=self._own())
            case "/health":
                return web.Response(status=200 if self.healthy else 503, headers=self._own())
            case "/echo":
                return web.Response(body=raw, headers=self._own())
            case path if path in GENERATES:
                allowed = {"Allow": "POST", **self._own()}
                return web.json_response({"detail": "Method Not Allowed"}, status=405, headers=allowed)
            case _:
                return web.json_response({"detail": "Not Found"}, status=404, headers=self._own())

    async def _generate(self, request: web.Request, received: Received) -> web.StreamResponse:
        async with self._arrived:
            self.count += 1
            self._serial += 1
            number = self._serial
            self.received.append(received)
            self._arrived.notify_all()
        script = next((made for rule in list(self.rules) if (made := rule(received)) is not None), Script())
        own = self._own()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if script.delay:
                await asyncio.sleep(script.delay)
            if script.gate is not None:
                await script.gate.wait()
            return await self._answer(request, received, script, number, own)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        finally:
            self.running -= 1

    async def _answer(
        self, request: web.Request, received: Received, script: Script, number: int, own: dict[str, str]
    ) -> web.StreamResponse:
        headers = {**own, **script.headers}
        if script.wire is not None:
            return await _bare(request, script.wire, script.end)
        if script.body is not None or script.status not in (None, 200):
            body = script.body if script.body is not None else _error(script.status or 500)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"}
            return web.Response(status=script.status or 200, body=data, headers={**kind, **headers})
        body = received.body
        if script.sse is not None or body.get("stream"):
            pieces = script.sse if script.sse is not None else self._stream(request.path, body, number, script)
            return await self._send(request, pieces, script, headers)
        data = json.dumps(self._whole(request.path, body, number, script)).encode()
        if script.encoding is not None:
            data = _compress(data, script.encoding)
            headers["Content-Encoding"] = script.encoding
        return web.Response(body=data, headers={"Content-Type": "application/json", **headers})

    async def _send(
        self, request: web.Request, pieces: Iterable[bytes], script: Script, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **headers})
        packer = None
        if script.encoding is not None:
            response.headers["Content-Encoding"] = script.encoding
            packer = zlib.compressobj(wbits=31 if script.encoding == "gzip" else 15)
        await response.prepare(request)
        for at, piece in enumerate(pieces):
            if script.gap:
                await asyncio.sleep(script.gap)
            data = piece if packer is None else packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
            await response.write(data)
            if script.sent is not None:
                await script.sent(at)
        if packer is not None:
            await response.write(packer.flush())
        if script.end == "eof":
            await response.write_eof()
        else:
            await _end(request, script.end)
        return response

    def _text(self, body: dict[str, Any], number: int, script: Script) -> str:
        return (script.text or self.text)(body, number)

    def _whole(self, path: str, body: dict[str, Any], number: int, script: Script) -> dict[str, Any]:
        text, model = self._text(body, number, script), body.get("model")
        usage = {"prompt_tokens": 9, "completion_tokens": 18, "total_tokens": 27}
        base = {"id": f"id-{number}", "created": 1_700_000_000 + number, "model": model}
        match path:
            case "/v1/chat/completions":
                choices = [
                    {"index": at, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                    for at in range(body.get("n") or 1)
                ]
                return {**base, "object": "chat.completion", "choices": choices, "usage": usage}
            case "/v1/completions":
                prompts = body.get("prompt")
                several = isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list)
                count = (len(prompts) if several and isinstance(prompts, list) else 1) * (body.get("n") or 1)
                choices = [{"index": at, "text": text, "finish_reason": "stop"} for at in range(count)]
                return {**base, "object": "text_completion", "choices": choices, "usage": usage}
            case "/v1/embeddings":
                return _embeddings(body, number, base)
            case "/v1/responses":
                return _response(base, text)
            case "/v1/messages":
                return {
                    "id": base["id"],
                    "type": "message",
                    "role": "assistant",
                    "model": model,
                    "content": [{"type": "text", "text": text}],
                    "stop_reason": "end_turn",
                    "stop_sequence": None,
                    "usage": {"input_tokens": 9, "output_tokens": 18},
                }
            case "/v1/rerank":
                documents = body.get("documents") or []
                results = [
                    {"index": at, "document": {"text": each}, "relevance_score": 1 / (at + number)}
                    for at, each in enumerate(documents)
                ]
                return {**base, "results": results, "usage": {"total_tokens": 9}}
            case _:
                data = [{"index": 0, "object": "score", "score": 1 / number}]
                return {**base, "object": "list", "data": data, "usage": usage}

    def _stream(self, path: str, body: dict[str, Any], number: int, script: Script) -> list[bytes]:
        text = self._text(body, number, script)
        whole = self._whole(path, body, number, script)
        if path == "/v1/messages":
            return _message_stream(whole, text)
        if path == "/v1/responses":
            return _response_stream(whole, text)
        chat = path == "/v1/chat/completions"
        base = {name: whole[name] for name in ("id", "created", "model")}
        base["object"] = "chat.completion.chunk" if chat else "text_completion"
        words = _pieces(text, script.chunks)
        pieces = []
        for choice in whole["choices"]:
            at = choice["index"]
            if chat:
                first = {"index": at, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                pieces.append(sse({**base, "choices": [first]}))
            for word in words:
                given = {"delta": {"content": word}} if chat else {"text": word}
                pieces.append(sse({**base, "choices": [{"index": at, **given, "finish_reason": None}]}))
            last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            pieces.append(sse({**base, "choices": [{"index": at, **last, "finish_reason": "stop"}]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            pieces.append(sse({**base, "choices": [], "usage": whole["usage"]}))
        return [*pieces, DONE]


def _place(port: int) -> socket.socket:
    """A socket on this port (0: a free one) of which another may listen there too."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


async def _bare(request: web.Request, data: bytes, end: str) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(data)
    await _end(request, "cut" if end == "eof" else end)
    return web.Response()


async def _end(request: web.Request, how: str) -> None:
    assert request.transport is not None
    match how:
        case "reset":
            sock = request.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        case "cut":
            request.transport.close()
        case _:
            await asyncio.Event().wait()


DONE = b"data: [DONE]\n\n"


def sse(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _pieces(text: str, chunks: int | None) -> list[str]:
    if chunks is None:
        *words, last = text.split(" ")
        return [*(word + " " for word in words), last]
    size = max(1, -(-len(text) // chunks))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _error(status: int) -> dict[str, Any]:
    return {"error": {"message": f"mock says {status}", "type": "mock_error", "param": None, "code": status}}


def _compress(data: bytes, encoding: str) -> bytes:
    match encoding:
        case "gzip":
            return gzip.compress(data)
        case "deflate":
            return zlib.compress(data)
        case "br":
            import brotli  # type: ignore[import-untyped]

            return bytes(brotli.compress(data))
        case "zstd":
            import zstandard

            return zstandard.compress(data)
        case _:
            raise ValueError(encoding)


def _embeddings(body: dict[str, Any], number: int, base: dict[str, Any]) -> dict[str, Any]:
    import base64

    given = body.get("input")
    single = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    inputs: list[Any] = [given] if single else list(given or [])
    data = []
    for at, each in enumerate(inputs):
        values = [number + at / 8 + (len(str(each)) + place) / 1024 for place in range(body.get("dimensions") or 16)]
        embedding: Any = values
        if body.get("encoding_format") == "base64":
            embedding = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        data.append({"object": "embedding", "index": at, "embedding": embedding})
    tokens = sum(max(1, len(each)) for each in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": base["model"], "usage": usage}


def _response(base: dict[str, Any], text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": base["id"],
        "object": "response",
        "created_at": base["created"],
        "model": base["model"],
        "status": "completed",
        "output": [item],
        "usage": {"input_tokens": 9, "output_tokens": 18, "total_tokens": 27},
    }


def _response_stream(whole: dict[str, Any], text: str) -> list[bytes]:
    item = whole["output"][0]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    empty = {**item["content"][0], "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": empty},
        *[{"type": "response.output_text.delta", **place, "delta": word} for word in _pieces(text, None)],
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": item["content"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [sse({**event, "sequence_number": at}, str(event["type"])) for at, event in enumerate(events)]


def _message_stream(whole: dict[str, Any], text: str) -> list[bytes]:
    begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 0}}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        sse({"type": "message_start", "message": begun}, "message_start"),
        sse(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            "content_block_start",
        ),
        sse({"type": "ping"}, "ping"),
        *[
            sse(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}},
                "content_block_delta",
            )
            for word in _pieces(text, None)
        ],
        sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
        sse({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 18}}, "message_delta"),
        sse({"type": "message_stop"}, "message_stop"),
    ]
