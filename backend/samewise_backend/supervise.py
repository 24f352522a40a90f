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
from types import FrameType

_PR_SET_PDEATHSIG = 1
_POLL = 0.2


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    host: str,
    port: int,
    model: str,
    ready: Callable[[], None],
) -> int:
    """Run until the child ends; its exit code (128 + signal where a signal ended it).

    `ready` is called once, when `/health` answers 200 and one short request has been computed: vLLM's first
    step takes seconds, and no client should wait for it. SIGTERM and SIGINT go to the child.
    """
    child = subprocess.Popen(command, env=dict(environment), preexec_fn=_die_with_parent)
    stopped = threading.Event()

    def forward(number: int, _: FrameType | None) -> None:
        stopped.set()
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    address = "127.0.0.1" if host in {"0.0.0.0", "::", ""} else host
    watcher = threading.Thread(target=_announce, args=(child, address, port, model, stopped, ready), daemon=True)
    watcher.start()
    code = child.wait()
    stopped.set()
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """In the child: the kernel ends it when this process dies without a word (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _announce(
    child: subprocess.Popen[bytes],
    host: str,
    port: int,
    model: str,
    stopped: threading.Event,
    ready: Callable[[], None],
) -> None:
    while child.poll() is None and not stopped.wait(_POLL):
        if _ask(host, port, "GET", "/health", timeout=5) == 200:
            body = json.dumps({"model": model, "prompt": "a", "max_tokens": 2, "seed": 0, "temperature": 0.5})
            _ask(host, port, "POST", "/v1/completions", body, timeout=600)
            if not stopped.is_set():
                ready()
            return


def _ask(host: str, port: int, method: str, path: str, body: str | None = None, *, timeout: float) -> int | None:
    """The status of an answer, None where there was none."""
    link = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        link.request(method, path, body, {"content-type": "application/json"} if body else {})
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()
