"""A small admin server that answers as it is told and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from samewise.cli import commands


@dataclass
class Scripted:
    url: str = ""
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any, status: int = 200) -> None:
        self.answers[(method, f"/samewise/v1/{path}")] = (status, body)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.asked.append((self.command, self.path, json.loads(raw) if raw else None, headers))
            missing = (404, {"error": {"message": "there is nothing here"}})
            status, body = script.answers.get((self.command, self.path), missing)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run(scripted: Scripted) -> Callable[..., Result]:
    """Runs `samewise ARGS` against the scripted server."""
    group = click.Group("samewise", commands={str(command.name): command for command in commands})

    def call(*args: str, env: dict[str, str] | None = None, **options: Any) -> Result:
        variables = {"SAMEWISE_ADMIN_URL": scripted.url, "SAMEWISE_ADMIN_TOKEN": "", **(env or {})}
        return CliRunner().invoke(group, list(args), env=variables, **options)

    return call
