"""The admin API over HTTP, with what Python has, so that commands start fast."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import click

NO, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes: the answer is "no"; usage or configuration; the server could not be reached."""

_BELOW = frozenset({400, 431, 500})
"""What either port says below its application, in the same words."""
_API = "/samewise/v1"
_TIMEOUT = 30.0


class Fail(click.ClickException):
    """One line on stderr, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = exit_code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code

    def show(self, file: Any = None) -> None:
        click.echo(f"samewise: {self.message}", err=True)


class Admin:
    """A running proxy's admin port."""

    def __init__(self, url: str, token: str = "", timeout: float = _TIMEOUT) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host:
            raise Fail(f"--admin should be a URL, such as http://127.0.0.1:8081 (it is {url!r})", USAGE)
        if not (token.isascii() and token.isprintable()):
            raise Fail("SAMEWISE_ADMIN_TOKEN should be printable ASCII characters", USAGE)
        self.url = url
        self._secure = parts.scheme == "https"
        self._host, self._port, self._prefix = host, port, parts.path.rstrip("/")
        self._token = token
        self._timeout = timeout

    def get(self, *path: str, query: str = "") -> Any:
        return self._ask("GET", path, query=query)

    def post(self, *path: str, body: Any = None) -> Any:
        return self._ask("POST", path, {} if body is None else body)

    def put(self, *path: str, body: Any) -> Any:
        return self._ask("PUT", path, body)

    def delete(self, *path: str) -> Any:
        return self._ask("DELETE", path)

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens, as it happens; ends where the server ends it."""
        connection = self._connect(None)
        response = self._send(connection, "GET", f"{self._prefix}{_API}/events", None)
        self._check(response)
        lines: list[str] = []
        try:
            while line := response.readline():
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if text.startswith("data:"):
                    lines.append(text[5:].removeprefix(" "))
                elif not text and lines:
                    yield _json("\n".join(lines).encode())
                    lines.clear()
        except OSError as error:
            self._unreachable(error)
        finally:
            connection.close()

    def lines(self, *path: str, query: str = "") -> Iterator[bytes]:
        """A body of lines, as they come, each with its end."""
        connection = self._connect(self._timeout)
        target = self._target(path, query)
        try:
            response = self._send(connection, "GET", target, None)
            self._check(response)
            while line := response.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)
        finally:
            connection.close()

    def upload(self, *path: str, lines: Iterator[bytes], query: str = "") -> Any:
        """Post lines as they are read; the answer comes when all are taken, however long that takes."""
        connection = self._connect(None)
        try:
            response = self._send(connection, "POST", self._target(path, query), lines)
            self._check(response)
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)
        finally:
            connection.close()
        return _json(data)

    def _target(self, path: tuple[str, ...], query: str) -> str:
        target = f"{self._prefix}{_API}/" + "/".join(quote(step, safe="") for step in path)
        return f"{target}?{query}" if query else target

    def _ask(self, method: str, path: tuple[str, ...], body: Any = None, query: str = "") -> Any:
        connection = self._connect(self._timeout)
        target = self._target(path, query)
        payload = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            response = self._send(connection, method, target, payload)
            self._check(response)
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)
        finally:
            connection.close()
        return _json(data) if data else None

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, target: str, payload: bytes | Iterator[bytes] | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json, text/event-stream"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            chunked = payload is not None and not isinstance(payload, bytes)
            if chunked:
                headers |= {"Content-Type": "application/jsonl", "Transfer-Encoding": "chunked"}
            connection.request(method, target, body=payload, headers=headers, encode_chunked=chunked)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._unreachable(error)

    def _check(self, response: http.client.HTTPResponse) -> None:
        if response.getheader("x-samewise-cache") is not None and response.status not in _BELOW:
            hint = "--admin should be its admin port, such as http://127.0.0.1:8081"
            raise Fail(f"{self.url} is the data port of a proxy; {hint}", USAGE)
        if response.status < 400:
            return
        told = _message(response.read(65536))
        message = told or f"{self.url} answered {response.status} {response.reason}"
        match response.status:
            case 401 | 403:
                hint = "set SAMEWISE_ADMIN_TOKEN to the [admin] token of the proxy"
                raise Fail(f"{self.url} refused: {message}; {hint}", USAGE)
            case 404 if not told:
                raise Fail(f"{message}; is --admin the admin port of samewise?", USAGE)
            case 404 | 409:
                raise Fail(message, NO)
            case status if status < 500:
                raise Fail(message, USAGE)
            case status:
                why = f": {told}" if told else ""
                raise Fail(f"{self.url} was reached and failed with {status}{why}; its log says why", UNREACHABLE)

    def _unreachable(self, error: Exception) -> NoReturn:
        hint = "start it with `samewise serve`, or name it with --admin or SAMEWISE_ADMIN_URL"
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Fail(f"no proxy could be reached at {self.url} ({why}); {hint}", UNREACHABLE) from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise Fail("the server did not answer with JSON; is --admin the admin port of samewise?", UNREACHABLE) from None


def _message(data: bytes) -> str:
    try:
        error = json.loads(data)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return ""
