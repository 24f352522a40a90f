"""The real proxy as a process, from a settings file, on free ports; and small clients that see every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.patience import ENOUGH
from tests.support.wire import Wire

READY = re.compile(r"samewise: ready on (\S+) \(admin (\S+)\)")
JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"
B0: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "seed": 7,
    "max_tokens": 16,
}


class Answered:
    """One response, whole."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, seconds: float) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.seconds = seconds

    @property
    def cache(self) -> str | None:
        return self.headers.get("x-samewise-cache")

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-samewise-reason")

    @property
    def key(self) -> str | None:
        return self.headers.get("x-samewise-key")

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The text of the first choice, from a body or from events."""
        if self.headers["content-type"].startswith("text/event-stream"):
            chunks = [json.loads(data) for data in self.data() if data != "[DONE]"]
            choices = [choice for chunk in chunks for choice in chunk.get("choices", []) if choice["index"] == 0]
            return "".join(choice.get("delta", {}).get("content") or choice.get("text") or "" for choice in choices)
        choice = self.json()["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    def data(self) -> list[str]:
        """The payloads of the events."""
        blocks = self.body.decode().split("\n\n")
        return [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]

    def __repr__(self) -> str:
        return f"<{self.status} {self.cache} {self.reason} {self.body[:200]!r}>"


class Streaming:
    """A response of which the head is here and events come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.ended = False
        self.held = b""
        """What has come of an event that is not whole yet."""
        self._response = response

    async def blocks(self) -> AsyncIterator[str]:
        """Each event as it stands on the wire, without the empty line after it. Raises where the connection breaks."""
        async for piece in self._response.content.iter_any():
            *whole, self.held = (self.held + piece).split(b"\n\n")
            for block in whole:
                yield block.decode()
        self.ended = True
        if self.held:
            yield self.held.decode()

    async def data(self) -> AsyncIterator[str]:
        """The payload of each event."""
        async for block in self.blocks():
            for line in block.split("\n"):
                if line.startswith("data: "):
                    yield line[6:]


class Proxy:
    """`samewise serve`. `settings` are dotted names and JSON values; `upstreams` base URLs; `flags` come last."""

    def __init__(
        self,
        folder: Path,
        *upstreams: str,
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.flags = list(flags)
        self.upstreams = list(upstreams)
        self.settings: dict[str, Any] = {
            "server.port": 0,
            "admin.port": 0,
            "store.url": "memory://",
            "store.timeout": ENOUGH,
            "verify.rate": 0.0,
            **(settings or {}),
        }
        self.env = dict(env or {})
        self.url = ""
        self.admin_url = ""
        self.log: list[str] = []
        self.seconds_to_ready = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    # --- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def write_settings(self) -> Path:
        tables: dict[str, dict[str, Any]] = {}
        for name, value in self.settings.items():
            section, _, key = name.rpartition(".")
            tables.setdefault(section, {})[key] = value
        lines = []
        for section, values in tables.items():
            lines += [f"[{section}]", *[f"{key} = {_toml(value)}" for key, value in values.items()]]
        for url in self.upstreams:
            lines += ["[[upstreams]]", f"url = {json.dumps(url)}"]
        path = self.folder / "samewise.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        began = asyncio.get_running_loop().time()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "samewise.main",
            "serve",
            "--config",
            str(self.write_settings()),
            *self.flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, **self.env},
            start_new_session=True,
            limit=1 << 20,
        )
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.log.append(line.decode())
            if found := READY.search(self.log[-1]):
                self.url, self.admin_url = found.groups()
                break
        else:
            code = await self._process.wait()
            raise AssertionError(f"the proxy ended with {code}: {''.join(self.log)}")
        self.seconds_to_ready = asyncio.get_running_loop().time() - began
        self._reading = asyncio.create_task(self._read())
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=2 * ENOUGH),
            max_line_size=1 << 20,
            max_field_size=1 << 20,
        )

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            self.log.append(line.decode())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """The exit code, when it has ended."""
        assert self._process is not None
        code = await self._process.wait()
        if self._reading is not None:
            await self._reading
        return code

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self.signal()
        try:
            async with asyncio.timeout(40):
                code = await self.ended()
        except TimeoutError:
            self._process.kill()
            code = await self.ended()
        self._process = None
        return code

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await self.ended()
        await self.stop()

    async def restart(self) -> None:
        """Stop and start again on the same store and settings, on new ports."""
        await self.stop()
        self.log.clear()
        await self.start()

    # --- asking ---------------------------------------------------------------------------------------

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def request(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None, admin: bool = False
    ) -> Answered:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        began = asyncio.get_running_loop().time()
        async with self.session.request(
            method,
            (self.admin_url if admin else self.url) + path,
            data=data,
            headers={**(JSON if data is not None else {}), **(headers or {})},
        ) as response:
            got = await response.read()
            seconds = asyncio.get_running_loop().time() - began
            return Answered(response.status, response.headers, got, seconds)

    async def post(self, body: Any, *, path: str = CHAT, headers: Mapping[str, str] | None = None) -> Answered:
        return await self.request("POST", path, body=body, headers=headers)

    async def admin(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """A call of the admin API (`/samewise/v1` is put before the path); its JSON. Fails on errors."""
        answered = await self.request(method, "/samewise/v1" + path, body=body, headers=headers, admin=True)
        assert answered.status < 400, answered
        return answered.json()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of this name with these labels; 0 where there is none."""
        answered = await self.request("GET", "/metrics", admin=True)
        total = 0.0
        for line in answered.body.decode().splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)(?: .*)?", line)
            if found is None or found[1] != name:
                continue
            given = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            if all(given.get(label) == value for label, value in labels.items()):
                total += float(found[3])
        return total

    async def waits(self, count: int) -> None:
        """Return when so many callers wait for fetches, those that share one included."""

        async def so_many() -> bool:
            return await self.metric("samewise_waiting") == count

        await until(so_many)

    @contextlib.asynccontextmanager
    async def stream(
        self, body: Any, *, path: str = CHAT, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streaming]:
        """A response that is read as it comes; leaving the block before its end is leaving the connection."""
        asked = {**body, "stream": True}
        async with self.session.post(self.url + path, json=asked, headers=dict(headers or {})) as response:
            streaming = Streaming(response)
            yield streaming
            if not streaming.ended:
                response.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the data port."""
        return _address(self.url)

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port of the admin port."""
        return _address(self.admin_url)

    async def raw(self, data: bytes, *, admin: bool = False) -> bytes:
        """Bytes over a bare socket, and all that comes back until the proxy closes. Raises TimeoutError."""
        async with Wire.to(self.admin_address if admin else self.address) as wire:
            await wire.send(data)
            return await wire.rest()


async def until(check: Any, within: float = ENOUGH, every: float = 0.02) -> None:
    """Return when the (async) check is true. Raises TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(every)


async def soon(check: Any, seconds: int = 1) -> None:
    """Return when the (async) check is true. Raises TimeoutError after a hundred vain ones for each of these seconds.

    With the pauses between them they take that long at least, and longer where the machine is so busy that each does.
    """
    for _ in range(100 * seconds):
        if await check():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{100 * seconds} looks, a hundredth of a second apart, were vain")


def _address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            return json.dumps(value)
