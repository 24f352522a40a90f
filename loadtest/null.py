"""A null upstream: as little between a request and its answer as Python allows, with or without a latency.

`python -m loadtest.null [--latency SECONDS] [--gap SECONDS] [--chunks N] [--turns 1] [--again FAULT]` prints its
base URL. `GET /count` says how many answers were asked for. Streams have N chunks: with a gap between them, or each
in a turn of its own, or all in one piece. Recomputations, which bring a `cache_salt`, meet the FAULT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, cast

ENVIRONMENT = "0" * 32
TEXT = "It is the same question, so it is the same answer. " * 18
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_AGAIN = b'"cache_salt"'
_USAGE = re.compile(rb'"include_usage": ?true')


def answer() -> bytes:
    """A chat completion of 1.1 KB."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 20, "completion_tokens": 200, "total_tokens": 220}
    body = {"id": "null", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def events(chunks: int, *, usage: bool = False) -> list[bytes]:
    """A stream of that many chunks, a finish, the usage for who asks for it, and its end."""

    def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
        body = {"id": "null", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    def delta(finish: str | None = None, **delta: str) -> bytes:
        return chunk({"index": 0, "delta": delta, "finish_reason": finish})

    words = [delta(content=f" word{at}") for at in range(chunks)]
    told = [chunk(usage={"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks})]
    return [delta(role="assistant", content=""), *words, delta("stop"), *(told if usage else ()), b"data: [DONE]\n\n"]


def _response(body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nx-samewise-environment: "
    return f"{head}{ENVIRONMENT}\r\n\r\n".encode() + body


class Shape(NamedTuple):
    """How answers are given: times in seconds; `again` is `refuse`, `hang` or `cut`, or empty for no fault."""

    latency: float = 0.0
    gap: float = 0.0
    chunks: int = 200
    turns: bool = False
    again: str = ""


class Null(asyncio.Protocol):
    """One connection, one request at a time."""

    count = 0

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._answer = _response(answer())
        self._events = {
            usage: [b"%x\r\n%b\r\n" % (len(event), event) for event in events(shape.chunks, usage=usage)]
            + [b"0\r\n\r\n"]
            for usage in (False, True)
        }
        self._head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"x-samewise-environment: " + ENVIRONMENT.encode() + b"\r\n\r\n"
        )
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._data, 0, end + 2)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size:
                return
            request, self._data = self._data[:size], self._data[size:]
            self._handle(request)

    def _handle(self, request: bytes) -> None:
        assert self._transport is not None
        path = request.split(b" ", 2)[1]
        if request.startswith(b"GET"):
            self._transport.write(_response(self._told(path)))
            return
        Null.count += 1
        shape = self._shape
        if shape.again and _AGAIN in request:
            self._fail(self._transport, shape.again)
        elif _STREAM.search(request):
            told = self._events[_USAGE.search(request) is not None]
            if shape.turns or shape.gap or shape.latency:
                self._later(self._stream(told))
            else:
                self._transport.write(self._head + b"".join(told))
        elif shape.latency:
            asyncio.get_running_loop().call_later(shape.latency, self._transport.write, self._answer)
        else:
            self._transport.write(self._answer)

    def _fail(self, transport: asyncio.Transport, fault: str) -> None:
        if fault == "refuse":
            transport.write(_response(b'{"error":{"message":"busy"}}').replace(b"200 OK", b"429 Too Many Requests", 1))
        elif fault == "cut":
            transport.write(self._answer[: len(self._answer) // 2])
            transport.close()

    def _told(self, path: bytes) -> bytes:
        match path:
            case b"/count":
                return str(Null.count).encode()
            case b"/samewise/environment":
                defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
                manifest = {"id": ENVIRONMENT, "model": "m", "engine": "null", "generation_defaults": defaults}
                return json.dumps(manifest).encode()
            case _:
                return b'{"object":"list","data":[{"id":"m","object":"model"}]}'

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stream(self, told: Sequence[bytes]) -> None:
        assert self._transport is not None
        await asyncio.sleep(self._shape.latency)
        self._transport.write(self._head)
        for event in told:
            self._transport.write(event)
            await asyncio.sleep(self._shape.gap)


async def _serve(port: int, shape: Shape) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Null(shape), "127.0.0.1", port, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main(argv: list[str]) -> int:
    """Serve until killed."""
    import uvloop

    parser = argparse.ArgumentParser(prog="loadtest.null")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--gap", type=float, default=0.0)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--turns", type=int, default=0, help="1: each chunk is a write of its own")
    parser.add_argument("--again", default="", choices=("", "refuse", "hang", "cut"), help="what recomputations meet")
    given = parser.parse_args(argv)
    shape = Shape(given.latency, given.gap, given.chunks, bool(given.turns), given.again)
    uvloop.run(_serve(given.port, shape))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
