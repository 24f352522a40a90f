"""What became known of a request, as response headers; answers as bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE, HttpVersion11
from multidict import CIMultiDict

from samewise.core import cache_status
from samewise.core.answer import Event, Headers
from samewise.core.cache_status import CacheStatus
from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.http.gather import Gathering
from samewise.http.ping import Pings
from samewise.pipeline.account import Account
from samewise.pipeline.source import Live, Reply

_ERROR = 400
_PIECE = 256 * 1024
_NEXT = b"\n\ndata: "
_OF_THE_MOMENT = frozenset({"x-request-id", "Cache-Status", "Age"})


def marks(account: Account, status: int) -> list[tuple[str, str]]:
    """Our own header fields for a response with this status (RFC 9111 `Age`, RFC 9211 `Cache-Status`)."""
    hit = account.marks.outcome == "hit" and status < _ERROR
    fields = [
        ("x-request-id", account.request_id),
        ("x-samewise-cache", "ERROR" if status >= _ERROR else account.marks.outcome.upper()),
        ("Cache-Status", _cache_status(account, status, hit=hit)),
    ]
    if hit:
        fields.append(("Age", str(int(account.marks.age or 0))))
        fields.append(("x-samewise-verified", str(account.marks.verified or 0)))
    elif account.marks.reason is not None:
        fields.append(("x-samewise-reason", account.marks.reason))
    if account.marks.key is not None:
        fields.append(("x-samewise-key", account.marks.key))
    if account.marks.environment:
        fields.append(("x-samewise-environment", account.marks.environment))
    if account.marks.snapshot is not None:
        fields.append(("x-samewise-snapshot", account.marks.snapshot))
    if account.marks.receipt is not None:
        fields.append(("x-samewise-receipt", account.marks.receipt))
    if account.marks.seed is not None:
        fields.append(("x-samewise-seed", str(account.marks.seed)))
    return fields


def _cache_status(account: Account, status: int, *, hit: bool) -> str:
    return cache_status.render(
        CacheStatus(
            fwd=None if hit else account.marks.forward,
            refused=not hit,
            fwd_status=account.marks.answered if not hit and status >= _ERROR else None,
            ttl=account.marks.ttl if hit else None,
            stored=account.marks.stored,
            collapsed=account.marks.outcome == "coalesced",
            detail=None if hit else account.marks.reason,
        )
    )


def wire(event: Event) -> bytes:
    """One event as bytes (WHATWG HTML, section 9.2.6): data with line ends in it becomes several lines."""
    data = event.data if b"\n" not in event.data else event.data.replace(b"\n", b"\ndata: ")
    if event.name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + data + b"\n\n"


def wires(events: Sequence[Event]) -> bytes:
    """All of them as bytes, as `wire` writes each; at once where each is a single line of data."""
    lines = [event.data for event in events if event.name is None]
    data = _NEXT.join(lines)
    if len(lines) < len(events) or data.count(b"\n") != _NEXT.count(b"\n") * (len(lines) - 1):
        return b"".join([wire(event) for event in events])
    return b"data: " + data + b"\n\n"


class Written:
    """A response that is bytes already, for aiohttp to be written as one."""

    __slots__ = ("_data",)

    status = 200
    keep_alive = True

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write it. Raises ConnectionError where the client is gone."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        transport.write(self._data)
        if request.protocol.writing_paused:
            await request.protocol._drain_helper()

    async def write_eof(self) -> None:
        """All of it is written."""


async def send(request: web.BaseRequest, reply: Reply, account: Account, *, ping: float = 0.0) -> web.StreamResponse:
    """Write the reply. A stream that is cut ends with an error event and without its end.

    To a client of HTTP/1.0, which knows no chunks, a stream ends with its connection.

    `ping`: seconds of silence after which a stream that is under way shows a sign of life; 0 for never.
    """
    headers = _headers(reply.headers, marks(account, reply.status))
    if reply.live is None and reply.recorded is None:
        account.first_byte()
        return web.Response(status=reply.status, headers=headers, body=reply.body)
    response = web.StreamResponse(status=reply.status, headers=headers)
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    await response.prepare(request)
    if reply.live is not None:
        await _send_events(request, response, reply.live, account, Pings(ping))
        return response
    account.first_byte()
    for piece in _pieces(reply.recorded or ()):
        await response.write(piece)
    await response.write_eof()
    return response


def hot_head(reply: Reply, account: Account) -> bytes:
    """The status line and every field of a hit that stays the same when it is sent again, framing included."""
    own = [field for field in marks(account, reply.status) if field[0] not in _OF_THE_MOMENT]
    framing = (
        [("Content-Length", str(len(reply.body)))] if reply.recorded is None else [("Transfer-Encoding", "chunked")]
    )
    names = {name for name, _ in reply.headers}
    server = [] if "server" in names else [("Server", SERVER_SOFTWARE)]
    fields = (*reply.headers, *own, *framing, *server)
    lines = (f"{name}: {value}\r\n" for name, value in fields if name != "date")
    return b"HTTP/1.1 200 OK\r\n" + "".join(lines).encode("utf-8", "surrogateescape")


def hot_payload(reply: Reply) -> bytes:
    """The body as it is framed: as it is, or as one chunk of all events (RFC 9112 section 7.1)."""
    if reply.recorded is None:
        return reply.body
    data = wires(reply.recorded)
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"


def _pieces(events: Sequence[Event]) -> Iterator[bytes]:
    """Whole events, many in one write."""
    start = size = 0
    for at, event in enumerate(events, 1):
        size += len(event.data)
        if size >= _PIECE:
            yield wires(events[start:at])
            start, size = at, 0
    if start < len(events):
        yield wires(events[start:])


async def _send_events(
    request: web.BaseRequest,
    response: web.StreamResponse,
    live: Live,
    account: Account,
    pings: Pings,
) -> None:
    gathering = Gathering(request, response)
    try:
        async with pings.on(request, response):
            async for burst in live.bursts:
                account.first_byte()
                pings.spoke()
                await gathering.write(wires(burst))
        gathering.flush()
    except ConnectionError:
        raise
    except Exception as failure:
        gathering.flush()
        account.marks.reason = Reason.TRUNCATED
        await response.write(wire(live.cut(f"the answer was cut short: {failure}")))
        _hang_up(request)
        return
    await response.write_eof()


def _hang_up(request: web.BaseRequest) -> None:
    """End the connection without the chunk that would say that the answer is whole (RFC 9112 section 8)."""
    if request.transport is not None:
        request.transport.close()


def refusal(error: ProxyError, account: Account) -> web.Response:
    """An error of our own."""
    account.marks.reason = error.reason
    fields: Headers = (("content-type", "application/json"), *error.headers)
    return web.Response(status=error.status, headers=_headers(fields, marks(account, error.status)), body=error.body())


def _headers(fields: Headers, own: list[tuple[str, str]]) -> CIMultiDict[str]:
    headers = CIMultiDict(fields)
    headers.extend(own)
    return headers
