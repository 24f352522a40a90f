"""Runs vLLM's server as a child: waits until it answers, passes signals on, ends with its exit code."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

_PR_SET_PDEATHSIG = 1
_POLL = 0.2


@dataclass(frozen=True)
class Server:
    """A command that serves HTTP on `host` and `port`, and the model to ask it for."""

    command: Sequence[str]
    environment: Mapping[str, str]
    host: str
    port: int
    model: str

    @property
    def address(self) -> str:
        """Where this machine reaches it."""
        return "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host


def run(server: Server, ready: Callable[[], None]) -> int:
    """Run until the child ends; its exit code (128 + signal where a signal ended it).

    `ready` is called once, when `/health` answers 200 and one short request has been computed: vLLM's first
    step takes seconds, and no client should wait for it. SIGTERM and SIGINT go to the child.
    """
    child = subprocess.Popen(server.command, env=dict(server.environment), preexec_fn=_die_with_parent)  # noqa: PLW1509
    stopped = threading.Event()

    def forward(number: int, _: FrameType | None) -> None:
        stopped.set()
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    threading.Thread(target=_announce, args=(child, server, stopped, ready), daemon=True).start()
    code = child.wait()
    stopped.set()
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """In the child: the kernel ends it when this process dies without a word (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _announce(
    child: subprocess.Popen[bytes], server: Server, stopped: threading.Event, ready: Callable[[], None]
) -> None:
    while child.poll() is None and not stopped.wait(_POLL):
        if _ask(server, "GET", "/health", None, 5) == 200:
            body = {"model": server.model, "prompt": "a", "max_tokens": 2, "seed": 0, "temperature": 0.5}
            _ask(server, "POST", "/v1/completions", json.dumps(body), 600)
            if not stopped.is_set():
                ready()
            return


def _ask(server: Server, method: str, path: str, body: str | None, timeout: float) -> int | None:
    """The status of an answer, None where there was none."""
    link = http.client.HTTPConnection(server.address, server.port, timeout=timeout)
    try:
        link.request(method, path, body, {"content-type": "application/json"} if body else {})
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()
