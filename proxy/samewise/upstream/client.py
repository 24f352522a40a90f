"""HTTP to one upstream."""

from __future__ import annotations

import asyncio
import functools
import io
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler

from samewise.core.address import base_url
from samewise.core.fingerprint import MAX_ID
from samewise.ports import Call, UpstreamFailed
from samewise.upstream.address import locate, root_url
from samewise.upstream.decode import ACCEPT
from samewise.upstream.exchange import HttpExchange
from samewise.upstream.headers import incoming, outgoing
from samewise.upstream.options import Timeouts, UpstreamOptions
from samewise.upstream.sse import MAX_EVENT

_MAX_HEADER = 256 << 10
_MAX_HEADERS = 1000
_KEEPALIVE = 4.0
"""Seconds an idle connection is kept; servers on uvicorn (vLLM) close theirs after 5."""
_STALE = 1.0
"""Seconds after sending in which the end of a reused connection is taken for the end of its idle time."""
_AT_ONCE = 1 << 20
"""Bytes of a body above which it is written in pieces."""
_NOT_SET = frozenset({hdrs.USER_AGENT, hdrs.CONTENT_TYPE, hdrs.ACCEPT})
ENVIRONMENT_HEADER = "x-samewise-environment"


class Client:
    """The connections to one upstream. Redirects are not followed, no proxy variable and no cookie is looked at.

    A request is sent a second time in one case only: it went out on a reused connection, and that
    connection ended within a second, before a byte of an answer, as it does when the upstream closes an
    idle connection at the same moment (RFC 9112 section 9.3.1). The second attempt has a fresh connection,
    whose failure is final. A request on a fresh connection is never repeated, whatever becomes of it.
    """

    def __init__(self, options: UpstreamOptions, timeouts: Timeouts, *, max_event: int = MAX_EVENT) -> None:
        """Raises ValueError where the URL isn't one. Connects to nothing."""
        self.base = base_url(options.url)
        self.root = root_url(self.base)
        self._api_key = options.api_key
        self._timeouts = timeouts
        self._max_event = max_event
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(
        self,
        call: Call,
        *,
        environment: str | None = None,
        vouched: bool = False,
        instance: str | None = None,
        concurrency: int = 1,
        timeouts: Timeouts | None = None,
        ended: Callable[[UpstreamFailed | None], None] = lambda failure: None,
    ) -> HttpExchange:
        """Send and wait for the head of the answer. Raises UpstreamFailed, and then `ended` is not told.

        `environment` is what the exchange carries where the answer names none; with `vouched` also where it does.
        """
        limits = timeouts or self._timeouts
        started = asyncio.get_running_loop().time()
        response = await self._send(call, limits, started)
        named = None if vouched else _named(response)
        return HttpExchange(
            response,
            headers=incoming(response.headers.items(), body=call.method != "HEAD"),
            member=self.base,
            environment=environment if named is None else named,
            instance=instance,
            concurrency=concurrency,
            started=started,
            timeouts=limits,
            max_event=self._max_event,
            ended=ended,
        )

    async def close(self) -> None:
        """End every connection."""
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()

    async def _send(self, call: Call, limits: Timeouts, started: float) -> aiohttp.ClientResponse:
        if self._pooled is None:
            self._pooled = _session(reuse=True)
        track = SimpleNamespace(reused=False, sent_at=0.0, connected=False)
        try:
            return await self._attempt(self._pooled, call, limits, started, track)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not _stale(error, call, track):
                raise _failed(error, track, self.base) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, track, self.base) from error
        if self._fresh is None:
            self._fresh = _session(reuse=False)
        track = SimpleNamespace(reused=False, sent_at=0.0, connected=False)
        try:
            return await self._attempt(self._fresh, call, limits, started, track)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed(error, track, self.base) from error

    async def _attempt(
        self, session: aiohttp.ClientSession, call: Call, limits: Timeouts, started: float, track: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        deadline = started + min(limits.connect + limits.first_byte, limits.total)
        try:
            async with asyncio.timeout_at(deadline):
                return await session.request(
                    call.method,
                    locate(self.base, call.path),
                    data=_payload(call.body),
                    headers=[*outgoing(call.headers, self._api_key), ("accept-encoding", ACCEPT)],
                    skip_auto_headers=_NOT_SET,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=limits.connect),
                    trace_request_ctx=track,
                )
        except aiohttp.ConnectionTimeoutError as error:
            message = f"no connection to {self.base} within {limits.connect:g} s"
            raise UpstreamFailed("unreachable", message) from error
        except TimeoutError as error:
            message = f"{self.base} did not begin to answer within {limits.first_byte:g} s"
            raise UpstreamFailed("timeout", message, sent=track.connected) from error


def _named(response: aiohttp.ClientResponse) -> str | None:
    """The environment that the answer itself names; empty where that can be no id, None where it names none."""
    value = response.headers.get(ENVIRONMENT_HEADER)
    return value if value is None or len(value) <= MAX_ID else ""


def _payload(body: bytes | AsyncIterator[bytes]) -> bytes | io.BytesIO | AsyncIterator[bytes] | None:
    if isinstance(body, bytes):
        return io.BytesIO(body) if len(body) > _AT_ONCE else body or None
    return body


def _stale(error: aiohttp.ClientError, call: Call, track: SimpleNamespace) -> bool:
    """True where the connection had been used before and ended with nothing said, as soon as it was used again."""
    if not track.reused or not isinstance(call.body, bytes):
        return False
    if isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str):
        return False  # a head had begun
    sent_at: float = track.sent_at
    return asyncio.get_running_loop().time() - sent_at < _STALE


def _failed(error: Exception, track: SimpleNamespace, base: str) -> UpstreamFailed:
    if not track.connected:
        return UpstreamFailed("unreachable", f"no connection to {base}: {error}")
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, OSError)):
        return UpstreamFailed("cut", f"{base} ended the connection before it answered: {error}", sent=True)
    return UpstreamFailed("protocol", f"{base} answered with something that is not HTTP: {error}", sent=True)


class _Connection(ResponseHandler):
    """Reading that was never paused need not be resumed: aiohttp does it after each chunk, parser and all.

    A pause may stay with the parser after reading has been resumed, so that one counts for the rest of the answer.
    """

    _paused_once = False

    def set_response_params(self, **options: Any) -> None:
        """Another answer, another parser."""
        self._paused_once = False
        super().set_response_params(**options)

    def pause_reading(self) -> None:
        """The reader does not keep up."""
        self._paused_once = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on, where it was ever paused."""
        if self._paused_once:
            super().resume_reading(resume_parser)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("functools.partial[ResponseHandler]", functools.partial(_Connection, loop=self._loop))


def _session(*, reuse: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, **({"keepalive_timeout": _KEEPALIVE} if reuse else {"force_close": True})),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        max_headers=_MAX_HEADERS,
        trace_configs=[_trace()],
    )


def _trace() -> aiohttp.TraceConfig:
    """Notes on the request's own namespace: was the connection reused, does it stand, and since when."""
    config: aiohttp.TraceConfig = aiohttp.TraceConfig()

    async def reused(session: object, context: SimpleNamespace, params: object) -> None:
        note = context.trace_request_ctx
        note.reused = note.connected = True
        note.sent_at = asyncio.get_running_loop().time()

    async def created(session: object, context: SimpleNamespace, params: object) -> None:
        note = context.trace_request_ctx
        note.connected = True

    config.on_connection_reuseconn.append(reused)
    config.on_connection_create_end.append(created)
    return config
