"""Listening sockets over aiohttp's low-level server: errors in JSON, limits for headers, a graceful end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.http.body import too_slow
from samewise.http.framing import Framing
from samewise.http.hot import Hot, HotAnswers
from samewise.http.outlet import Outlet

_log = logging.getLogger("samewise.http")

MAX_HEADER = 64 * 1024
"""Bytes of one header line, and of the request line."""

MAX_HEADERS = 200
"""Header lines of one request."""

_LIMITS: dict[str, Any] = {
    "max_line_size": MAX_HEADER,
    "max_field_size": MAX_HEADER,
    "max_headers": MAX_HEADERS,
    "access_log": None,
}

KEEPALIVE = 75.0
"""Seconds that an idle connection is kept."""

HOLD = 0.05
"""Seconds for which the head of what may be a known request is kept from the parser, for its body to come."""

LINGER = 5.0
"""Seconds that a client may go on sending what was refused already: closed under it, it might lose the answer."""

_VERSIONS = frozenset({HttpVersion10, HttpVersion11})

Handler = Callable[[web.BaseRequest], Awaitable[Any]]


class Speaking(RequestHandler):
    """One connection. What can't be parsed or handled is answered in the shape of OpenAI's errors."""

    __slots__ = ("_gone", "_refused")

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._refused = False
        self._gone: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        """What comes after bytes that were refused is let go unread."""
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nobody is there to linger for."""
        self._leave()
        super().connection_lost(exc)

    def close(self) -> None:
        """Take no more requests, and linger for nobody."""
        self._leave()
        super().close()

    def _leave(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def linger(self) -> None:
        """End our side alone, for the client to see, and stay until it ends its own (RFC 9112 section 9.6)."""
        if self._close or self.transport is None or not self.transport.can_write_eof():
            return
        self.transport.write_eof()
        self._gone = self._loop.create_future()
        await asyncio.wait([self._gone], timeout=LINGER)

    def log_exception(self, *args: Any, **options: Any) -> None:
        """What is wrong with a client's bytes is told to the client alone, and that it went away to nobody."""
        if not isinstance(options.get("exc_info"), RequestPayloadError | ConnectionError):
            super().log_exception(*args, **options)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """400 or 431 for what is no HTTP, 500 for a fault of ours; the connection ends after it."""
        if status == 400:
            self._refused = True
            error = _not_http(exc)
            _log.info("refused a request: %s (%s)", error.message, type(exc).__name__)
        else:
            super().handle_error(request, status, exc, message)
            error = ProxyError(
                status,
                "the proxy failed to handle this request; its log says why",
                code="internal",
                reason=Reason.INTERNAL,
            )
        response = _Last(
            self.linger if self._refused else None,
            status=error.status,
            body=error.body(),
            headers={
                "Content-Type": "application/json",
                "x-request-id": secrets.token_hex(16),
                "x-samewise-cache": "ERROR",
                "x-samewise-reason": error.reason,
                "Cache-Status": f"samewise; detail={error.reason}",
            },
        )
        response.force_close()
        return response


class _Last(web.Response):
    """The last response of a connection; `lingering` is waited for when it is written."""

    def __init__(self, lingering: Callable[[], Awaitable[None]] | None, **options: Any) -> None:
        super().__init__(**options)
        self._lingering = lingering

    async def write_eof(self, data: bytes = b"") -> None:
        """As for every response."""
        await super().write_eof(data)
        if self._lingering is not None:
            await self._lingering()


class Protocol(Speaking):
    """Hits that were answered before are answered here, below the parser (`hot`)."""

    __slots__ = ("_asked", "_body", "_framing", "_held", "_holding", "_hot", "_late", "_outlet", "_patience")

    def __init__(self, manager: web.Server, *, hot: HotAnswers | None, patience: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._hot = hot
        self._patience = patience
        self._asked = False
        self._body: StreamReader | None = None
        self._late: asyncio.TimerHandle | None = None
        self._framing = Framing()
        self._held = b""
        self._holding: asyncio.TimerHandle | None = None
        self._outlet = Outlet(self._loop, patience)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Whoever connects has something to ask, and asks it within `patience` seconds."""
        super().connection_made(transport)
        self._late = self._loop.call_later(self._patience, self._too_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nobody is waited for any more."""
        if self._late is not None:
            self._late.cancel()
        self._let_go()
        self._outlet.free()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        if self.transport is not None:
            self._outlet.stuck(self.transport)

    def resume_writing(self) -> None:
        """It does again."""
        self._outlet.free()
        super().resume_writing()

    def close(self) -> None:
        """Take no more requests. Who has asked nothing yet is let go at once: nobody would read what he asks."""
        if self._held:
            self._parse(self._let_go())
        super().close()
        if self._request_count == 0:
            self.force_close()

    def _too_late(self) -> None:
        self._late = None
        if self._asked or self._request_count or self.transport is None:
            return
        self.transport.write(
            b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nx-samewise-cache: ERROR\r\nx-samewise-reason: bad-request\r\n"
            b"Cache-Status: samewise; detail=bad-request\r\n"
            b"x-request-id: %s\r\n\r\n%s"
            % (len(body := too_slow(self._patience).body()), secrets.token_hex(16).encode(), body)
        )
        self.force_close()

    def data_received(self, data: bytes) -> None:
        """Answer what is known while nothing else is under way; give everything else to the parser.

        No bytes at all are the parser's own: it is asked to go on with what it has.
        """
        hot = self._hot
        if hot is None or not data or self._refused:
            self._parse(data)
            return
        if self._held:
            data = self._let_go() + data
        idle = self._waiter is not None and not self._waiter.done() and not self._messages
        if idle and self._framing.clear and not self._paused and not self._close:
            response = hot.by_request(data) or hot.by_fields(data)
            if response is not None:
                self._asked = True
                self.transport.write(response)  # type: ignore[union-attr]
                self._next_keepalive_close_time = self._loop.time() + KEEPALIVE
                return
            if hot.is_head(data):
                self._held = data
                self._holding = self._loop.call_later(HOLD, lambda: self._parse(self._let_go()))
                return
        self._parse(data)

    def _let_go(self) -> bytes:
        """What is held, which it is no more."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        held, self._held = self._held, b""
        return held

    def _parse(self, data: bytes) -> None:
        """A request at a time, so that what is wrong with one leaves those before it their answers.

        The parser takes any version with a digit on each side; those that aren't spoken here are refused.
        """
        if self._refused:
            return
        pieces = list(self._framing.cut(data)) or [data]
        if data:
            self._framing.feed(data)
        for piece in pieces:
            known = len(self._messages)
            self._feed(piece)
            for at in range(known, len(self._messages)):
                message, self._body = self._messages[at]
                if not isinstance(message, _ErrInfo) and message.version not in _VERSIONS:
                    refused = _ErrInfo(status=400, exc=BadHttpMessage("another version"), message="another version")
                    self._messages[at] = (refused, EMPTY_PAYLOAD)

    def _feed(self, data: bytes) -> None:
        """A request whose body is still on its way is read to its end, also while nothing more is taken."""
        stopping = self._close, self._force_close
        if self.transport is not None and self._body is not None and not self._body.is_eof():
            self._close = self._force_close = False
        try:
            RequestHandler.data_received(self, data)
        finally:
            self._close, self._force_close = self._close or stopping[0], self._force_close or stopping[1]

    def answered(self, answer: Hot) -> None:
        """The request under way was this hit: remember it by its bytes."""
        whole = self._framing.whole
        if self._hot is not None and whole is not None and not self._messages:
            self._hot.remember_request(*whole, answer)


def _not_http(exc: BaseException | None) -> ProxyError:
    if isinstance(exc, LineTooLong) or "Too many headers" in str(exc):
        text = f"the request line or a header is larger than {MAX_HEADER} bytes, or there are more than {MAX_HEADERS}"
        return ProxyError(431, text, code="headers_too_large")
    return ProxyError(400, "the request is not valid HTTP/1.1", code="bad_http")


def make_server(handler: Handler, hot: HotAnswers | None = None, *, patience: float = 60.0) -> web.Server:
    """A protocol factory; a handler is cancelled when its client goes away, or takes longer to ask than `patience`."""

    class _Server(web.Server):
        def __call__(self) -> RequestHandler:
            return Protocol(self, hot=hot, patience=patience, loop=self._loop, **self._kwargs)

    return _Server(
        handler,
        handler_cancellation=True,
        **_LIMITS,
        keepalive_timeout=KEEPALIVE,
        auto_decompress=False,
    )


async def listen_admin(runner: web.AppRunner, sock: socket.socket) -> asyncio.Server:
    """Accept connections for an application that is set up, with errors in JSON below it too."""
    manager, loop = runner.server, asyncio.get_running_loop()
    assert manager is not None

    def speaking() -> RequestHandler:
        return Speaking(manager, loop=loop, **_LIMITS)

    return await listen(speaking, sock)


def remember(request: web.BaseRequest, answer: Hot) -> None:
    """The request was answered with this hit: what comes again byte for byte is answered below the parser."""
    if isinstance(request.protocol, Protocol):
        request.protocol.answered(answer)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket. `shared`: other processes may bind the same port (SO_REUSEPORT). Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    """`http://HOST:PORT` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def listen(factory: Callable[[], Any], sock: socket.socket, *, backlog: int = 4096) -> asyncio.Server:
    """Accept connections on the socket from now on."""
    return await asyncio.get_running_loop().create_server(factory, sock=sock, backlog=backlog)
