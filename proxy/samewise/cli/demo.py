"""`samewise demo`: a small local model, the reference backend and the proxy, ready to use."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

MODEL = "demo"
_START = 120.0
_STOP = 10.0
_QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Why should the same question have the same answer?"}],
    "temperature": 0,
    "seed": 7,
    "max_tokens": 48,
}


class Answered(NamedTuple):
    """One response: what the proxy said of it, its body, and the seconds that it took."""

    cache: str
    body: bytes
    seconds: float


@click.command()
@click.option("--once", is_flag=True, help="Send the two requests and end.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Data port.")
@click.option("--admin-port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="Admin port.")
def demo(once: bool, port: int, admin_port: int) -> None:
    """Start a backend on a small random model and the proxy before it; ask twice, and keep serving."""
    if any(importlib.util.find_spec(name) is None for name in ("samewise_backend", "torch", "transformers")):
        raise click.ClickException("the demo needs the reference backend: pip install 'samewise[backend]'")
    with tempfile.TemporaryDirectory(prefix="samewise-demo-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        click.echo("making a small random model ...")
        _call("samewise_backend.cli", "tiny-model", str(place / "model"))
        click.echo("starting the reference backend ...")
        backend = stack.enter_context(
            _running(
                "samewise_backend.cli",
                *("serve", "--engine", "reference", "--model", str(place / "model")),
                *("--served-model-name", MODEL, "--port", "0"),
                log=place / "backend.log",
            )
        )
        click.echo("starting the proxy ...")
        address = stack.enter_context(
            _running(
                "samewise.main",
                *("serve", "--upstream", f"{backend}/v1", "--store", f"sqlite:///{place / 'samewise.db'}"),
                *("--port", "0" if once else str(port), "--admin-port", "0" if once else str(admin_port)),
                log=place / "proxy.log",
            )
        )
        first, second = _ask(address), _ask(address)
        for number, answer in enumerate((first, second), start=1):
            click.echo(f"request {number}: {answer.cache:<5} {answer.seconds * 1000:8.1f} ms  {len(answer.body)} bytes")
        same = first.body == second.body
        click.echo(f"the answers are {'the same, byte for byte' if same else 'DIFFERENT'}")
        if not (same and (first.cache, second.cache) == ("MISS", "HIT")):
            raise click.ClickException("expected a MISS and then a HIT with the same bytes")
        if not once:
            _keep_serving(address)


def _keep_serving(address: str) -> None:
    click.echo(
        f"\nready: point an OpenAI client at {address}/v1 (any API key, model {MODEL!r}); Ctrl-C ends it. For example\n"
        f"  curl -si {address}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(_QUESTION)}'"
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    click.echo("stopping ...")


def _ask(address: str) -> Answered:
    split = urlsplit(address)
    connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=_START)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(_QUESTION), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    seconds = time.perf_counter() - began
    connection.close()
    if response.status != http.HTTPStatus.OK:
        raise click.ClickException(f"the proxy answered {response.status}: {body.decode('utf-8', 'replace')}")
    return Answered(response.headers.get("x-samewise-cache", ""), body, seconds)


def _call(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{module} {arguments[0]} failed: {done.stderr.strip()}")


@contextlib.contextmanager
def _running(module: str, *arguments: str, log: Path) -> Iterator[str]:
    """A server of ours until the end of the block; gives the URL of its ready line."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield _ready(process, module, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[str], module: str, log: Path) -> str:
    for line in process.stdout or ():
        _, found, rest = line.partition("ready on ")
        if found:
            return rest.split()[0]
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    raise click.ClickException(f"{module} did not start: {said[-1000:]}")
