"""Load: wrk where it is installed, a generator of our own otherwise and where each request is another one."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from loadtest.stage import KEY, LOAD, on_core

CONNECTIONS = 32


@dataclass
class Measured:
    """What a load saw. Times are in seconds; `first` is the time to the first byte of each body."""

    rate: float
    p50: float
    p99: float
    errors: int = 0
    first: float = 0.0
    requests: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


def request(url: str, body: dict[str, Any], *headers: tuple[str, str]) -> bytes:
    """A chat request as bytes, with the API key."""
    place, _, path = url.removeprefix("http://").partition("/")
    raw = json.dumps(body).encode()
    fields = [("Host", place), ("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"), *headers]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"POST /{path}/chat/completions HTTP/1.1\r\n{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def question(seed: int = 7, **more: Any) -> dict[str, Any]:
    """A deterministic chat request."""
    said = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": f"What is {seed} plus {seed}?"},
    ]
    return {"model": "m", "messages": said, "temperature": 0, "seed": seed, "max_tokens": 256, **more}


def same(
    url: str, seconds: float, *, traced: bool = False, connections: int = CONNECTIONS, delay: int = 0, nice: int = 0
) -> Measured:
    """One request over and over, or with a new `traceparent` in each. `delay`: milliseconds before each."""
    if shutil.which("wrk") is None:
        return anew(url, seconds, lambda at: question(), connections=connections, traced=traced)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "same.lua"
        script.write_text(_script(traced, delay))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script)]
        command = [*(["nice", f"-n{nice}"] if nice else []), *command, f"{url}/chat/completions"]
        done = subprocess.run(on_core(LOAD if not nice else None, command), capture_output=True, text=True, check=True)
    return _of_wrk(done.stdout)


def _script(traced: bool, delay: int) -> str:
    lines = [
        'wrk.method = "POST"',
        f"wrk.body = {json.dumps(json.dumps(question()))}",
        'wrk.headers["Content-Type"] = "application/json"',
        f'wrk.headers["Authorization"] = "Bearer {KEY}"',
    ]
    if traced:
        lines += [
            "local number, head, tail = 0, nil, nil",
            "function request()",
            "  number = number + 1",
            "  if head == nil then",
            '    wrk.headers["traceparent"] = "00-@-00f067aa0ba902b7-01"',
            "    local whole = wrk.format()",
            '    local at = string.find(whole, "@", 1, true)',
            "    head, tail = string.sub(whole, 1, at - 1), string.sub(whole, at + 1)",
            "  end",
            '  return head .. string.format("%032x", number) .. tail',
            "end",
        ]
    if delay:
        lines.append(f"function delay() return {delay} end")
    return "\n".join(lines)


def _of_wrk(output: str) -> Measured:
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    if rate is None:
        raise RuntimeError(f"wrk said nothing: {output}")
    total = re.search(r"(\d+) requests in", output)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    return Measured(
        rate=float(rate[1]),
        p50=_seconds(output, "50%"),
        p99=_seconds(output, "99%"),
        errors=int(failed[1]) if failed else 0,
        requests=int(total[1]) if total else 0,
    )


def _seconds(output: str, name: str) -> float:
    found = re.search(rf"{name}\s+([\d.]+)(us|ms|s)", output)
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]] if found else 0.0


def anew(
    url: str,
    seconds: float,
    make: Callable[[int], dict[str, Any]],
    *,
    connections: int = 1,
    traced: bool = False,
    count: int | None = None,
) -> Measured:
    """Requests that `make` makes of their number, in a closed loop on each connection, for so long or so many."""
    import uvloop

    numbers = iter(range(count)) if count is not None else _forever()
    return uvloop.run(
        _anew(url, end=time.monotonic() + seconds, make=make, numbers=numbers, connections=connections, traced=traced)
    )


def _forever() -> Iterator[int]:
    at = 0
    while True:
        yield at
        at += 1


async def _anew(
    url: str,
    *,
    end: float,
    make: Callable[[int], dict[str, Any]],
    numbers: Iterator[int],
    connections: int,
    traced: bool,
) -> Measured:
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(Client, host, int(port)))[1] for _ in range(connections)]

    async def ask(client: Client) -> None:
        for number in numbers:
            if time.monotonic() > end:
                return
            more = [("traceparent", f"00-{number:032x}-00f067aa0ba902b7-01")] if traced else []
            await client.ask(request(url, make(number), *more))

    began = time.monotonic()
    await asyncio.gather(*(ask(client) for client in clients))
    took = time.monotonic() - began
    for client in clients:
        client.close()
    times = sorted(each for client in clients for each in client.times)
    first = sorted(each for client in clients for each in client.first)
    statuses: dict[str, int] = {}
    for client in clients:
        for name, number in client.statuses.items():
            statuses[name] = statuses.get(name, 0) + number
    if not times:
        return Measured(0, 0, 0, statuses=statuses)
    return Measured(
        rate=len(times) / took,
        p50=times[len(times) // 2],
        p99=times[len(times) * 99 // 100],
        errors=sum(number for name, number in statuses.items() if name.startswith("!")),
        first=first[len(first) // 2],
        requests=len(times),
        statuses=statuses,
    )


class Client(asyncio.Protocol):
    """One connection, one request at a time; knows Content-Length and chunks."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.first: list[float] = []
        self.statuses: dict[str, int] = {}
        self.bytes = 0
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._size: int | None = None
        self._began = 0.0
        self._seen = False
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError())

    async def ask(self, data: bytes) -> None:
        """Send, and return when the whole response has come."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._data.clear()
        self._size, self._seen = None, False
        self._began = time.perf_counter()
        self._transport.write(data)
        await self._done

    def data_received(self, data: bytes) -> None:
        self._data += data
        self.bytes += len(data)
        if self._size is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[: end + 2]).lower()
            length = re.search(rb"\r\ncontent-length: *(\d+)", head)
            self._size = end + 4 + int(length[1]) if length else -(end + 4)
            cache = re.search(rb"\r\nx-samewise-cache: (\w+)", head)
            name = ("" if head[9:12] == b"200" else "!") + (cache[1].decode() if cache else head[9:12].decode())
            self.statuses[name] = self.statuses.get(name, 0) + 1
        if not self._seen and len(self._data) > abs(self._size):
            self._seen = True
            self.first.append(time.perf_counter() - self._began)
        over = len(self._data) >= self._size if self._size > 0 else self._data.endswith(b"\r\n0\r\n\r\n")
        if over and self._done is not None and not self._done.done():
            self.times.append(time.perf_counter() - self._began)
            if not self._seen:
                self.first.append(self.times[-1])
            self._done.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


if __name__ == "__main__":
    made = same(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5)
    print(f"{made.rate:,.0f}/s p50 {made.p50 * 1e3:.3f} ms p99 {made.p99 * 1e3:.3f} ms errors {made.errors}")
