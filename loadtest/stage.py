"""Processes for a scenario: each on its own core where there are two, all ended at its end."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEY = "sk-loadtest"
SERVER, LOAD = 0, 1
_READY = re.compile(r"(?:samewise: ready on )?(http://\S+)(?: \(admin (\S+)\))?")


class Stage:
    """Starts and ends processes. `folder` is theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._folders: list[Path] = []

    def null(self, **options: float | str) -> Server:
        """A null upstream."""
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return self.start([sys.executable, "-m", "loadtest.null", *flags], LOAD)

    def bare(self, redis_url: str = "") -> Server:
        """A bare aiohttp handler."""
        return self.start([sys.executable, "-m", "loadtest.peers.bare", *filter(None, [redis_url])], SERVER)

    def relay(self, upstream: str) -> Server:
        """A bare aiohttp relay."""
        return self.start([sys.executable, "-m", "loadtest.peers.relay", upstream], SERVER)

    def proxy(
        self,
        upstream: str,
        *,
        workers: int = 1,
        core: int | None = SERVER,
        main: Sequence[str] = ("-m", "samewise.main"),
        **settings: Any,
    ) -> Server:
        """Samewise with an API key, and metrics, as it comes otherwise."""
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        tables: dict[str, dict[str, Any]] = {
            "server": {"port": 0, "workers": workers},
            "admin": {"port": 0},
            "store": {"url": "memory://"},
            "verify": {"rate": 0.0},
            "auth": {"keys": [{"tenant": "load", "sha256": digest}]},
        }
        for name, value in settings.items():
            section, _, key = name.partition("__")
            tables.setdefault(section, {})[key] = value
        tables["upstreams"] = {}
        path = self.folder / f"{len(self._processes)}.toml"
        lines = []
        for section, values in tables.items():
            if section == "upstreams":
                lines += ["[[upstreams]]", f"url = {json.dumps(upstream)}"]
                continue
            lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        path.write_text("\n".join(lines))
        command = [sys.executable, *main, "serve", "--config", str(path)]
        started = self.start(command, core)
        return Server(started.url + "/v1", started.pid, started.admin)

    def nginx(self, upstream: str) -> Server | None:
        """nginx's proxy_cache before the upstream, None where it isn't installed."""
        binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if binary is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="nginx-", dir=_fast(self.folder)))
        port = _free_port()
        text = (HERE / "peers" / "nginx.conf").read_text()
        place = upstream.removeprefix("http://").partition("/")[0]
        user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
        for name, value in {"FOLDER": folder, "PORT": port, "UPSTREAM": place, "USER": user}.items():
            text = text.replace(f"@{name}@", str(value))
        config = folder / "nginx.conf"
        config.write_text(text)
        process = self._popen([binary, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")], SERVER)
        self._folders.append(folder)
        _until(lambda: _listens(port))
        return Server(f"http://127.0.0.1:{port}/v1", process.pid)

    def litellm(self, upstream: str) -> Server | None:
        """LiteLLM's proxy with its local cache, None where it isn't installed (LITELLM names another binary)."""
        binary = os.environ.get("LITELLM") or shutil.which("litellm")
        if binary is None:
            return None
        port = _free_port()
        config = str(HERE / "peers" / "litellm.yaml")
        env = {
            "NULL_URL": upstream,
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        }
        process = self._popen([binary, "--config", config, "--port", str(port)], SERVER, env=env)
        _until(lambda: _listens(port), 90)
        return Server(f"http://127.0.0.1:{port}/v1", process.pid)

    def redis(self) -> str | None:
        """A Redis without persistence, None where there is none."""
        binary = shutil.which("redis-server")
        if binary is None:
            return None
        port = _free_port()
        options = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self._popen([binary, "--port", str(port), *options], LOAD)
        _until(lambda: _listens(port))
        return f"redis://127.0.0.1:{port}/0"

    def close(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, command: Sequence[str], core: int | None) -> Server:
        """Anything that prints its base URL when it serves."""
        process = self._popen(command, core, stdout=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if found := _READY.match(line):
                return Server(found[1], process.pid, found[2] or "")
        raise RuntimeError(f"{command} ended: {(self.folder / 'stderr').read_text()[-2000:]}")

    def _popen(
        self, command: Sequence[str], core: int | None, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        errors = (self.folder / "stderr").open("a")
        process = subprocess.Popen(
            on_core(core, command),
            stderr=errors,
            text=True,
            cwd=HERE.parent,
            env={**os.environ, **(env or {})},
            **{"stdout": subprocess.DEVNULL, **options},
        )
        self._processes.append(process)
        return process


class Server:
    """Something that serves at `url`, its base URL; `admin` is Samewise's."""

    def __init__(self, url: str, pid: int, admin: str = "") -> None:
        self.url, self.pid, self.admin = url, pid, admin

    def cpu(self) -> float:
        """Seconds of processor time that its processes have used so far."""
        ticks = sum(sum(map(int, _stat(pid)[11:13])) for pid in family(self.pid))
        return ticks / os.sysconf("SC_CLK_TCK")

    def count(self) -> int:
        """Answers that were asked for, of a null upstream."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/count") as response:
            return int(response.read())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        with urllib.request.urlopen(f"{self.admin}/metrics") as response:
            text = response.read().decode()
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                total += float(found[3]) if labels.items() <= given.items() else 0
        return total

    def resident(self) -> int:
        """Bytes of resident memory of its processes."""
        return sum(resident(pid) for pid in family(self.pid))


def resident(pid: int | str = "self") -> int:
    """Bytes of resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A stage with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        made = Stage(Path(folder))
        try:
            yield made
        finally:
            made.close()


def on_core(core: int | None, command: Sequence[str]) -> list[str]:
    """The command, kept to one core where there are two and `taskset` is there."""
    if core is None or (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return list(command)
    return ["taskset", "-c", str(core), *command]


def _fast(otherwise: Path) -> Path:
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else otherwise


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            return json.dumps(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(check: Callable[[], bool], within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"not ready within {within:g} s")
        time.sleep(0.05)
