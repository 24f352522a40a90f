"""The body of a request, whole and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.upstream.decode import Undecodable, decoder, of_strangers

CODINGS = of_strangers()
"""Content codings that are taken off while a body is read."""


class Bounds(NamedTuple):
    """What a body may be: `size` in bytes, and the `silence` in seconds that its client may keep within it."""

    size: int
    silence: float


async def read(request: web.BaseRequest, bounds: Bounds) -> bytes:
    """All bytes, decoded. Raises ProxyError as `pieces` does."""
    return b"".join([piece async for piece in pieces(request, bounds)])


async def pieces(request: web.BaseRequest, bounds: Bounds) -> AsyncIterator[bytes]:
    """The bytes as they come, decoded; a client that waits to be asked for them is asked (RFC 9110 section 10.1.1).

    Raises ProxyError: 413 above `limit` bytes, before and after decompression; 400 where what comes is not framed
    or coded as its head says; 408 where nothing comes for too long.
    """
    limit = bounds.size
    if request.content_length is not None and request.content_length > limit:
        raise too_large(limit)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    taking_off = decoder(request.headers.get("Content-Encoding") if coding(request) is None else None)
    came = size = 0
    try:
        while chunk := await _next(request, bounds.silence):
            came += len(chunk)
            for piece in (chunk,) if taking_off is None else taking_off.feed(chunk):
                size += len(piece)
                if max(came, size) > limit:
                    raise too_large(limit)
                yield piece
                if taking_off is not None:
                    await asyncio.sleep(0)
            if came > limit:
                raise too_large(limit)
        if taking_off is not None:
            taking_off.finish()
    except (RequestPayloadError, Undecodable) as error:
        message = "the body is not what its Content-Encoding or Transfer-Encoding says"
        raise ProxyError(400, message, code="bad_body") from error


async def _next(request: web.BaseRequest, silence: float) -> bytes:
    try:
        async with asyncio.timeout(silence):
            return await request.content.readany()
    except TimeoutError:
        raise too_slow(silence) from None


class Upload:
    """The body on its way to somewhere else. `failure` is what was wrong with it, if anything."""

    def __init__(self, request: web.BaseRequest, bounds: Bounds) -> None:
        self._request = request
        self._bounds = bounds
        self.failure: ProxyError | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they come. Raises ProxyError."""
        try:
            async for piece in pieces(self._request, self._bounds):
                yield piece
        except ProxyError as error:
            self.failure = error
            raise


def coding(request: web.BaseRequest) -> str | None:
    """The content coding that is still on the body when it is read; None where there is none."""
    value = request.headers.get("Content-Encoding", "").strip().lower()
    return None if value in CODINGS or value in {"", "identity"} else value


def unasked(request: web.BaseRequest) -> bool:
    """True where the client waited to be asked for a body that is not all here: it may send it now or never."""
    return "Expect" in request.headers and not request.content.at_eof()


def framed(request: web.BaseRequest) -> None:
    """Raises ProxyError 501 for a transfer coding other than chunked (RFC 9112 section 6.1)."""
    if not _plainly_framed(request):
        message = "the transfer coding must be chunked; codings of the body go into Content-Encoding"
        raise ProxyError(501, message, code="unsupported_coding", reason=Reason.BAD_REQUEST)


def _plainly_framed(request: web.BaseRequest) -> bool:
    return request.headers.get("Transfer-Encoding", "chunked").strip().lower() == "chunked"


async def there(request: web.BaseRequest, silence: float) -> None:
    """Return when all bytes have come, or no more will, or it takes too long; takes none of them.

    Only for bodies that fit a buffer.
    """
    plain = request.content_length is not None and "Content-Encoding" not in request.headers
    if plain and not request.content.is_eof():
        with contextlib.suppress(RequestPayloadError, TimeoutError):
            async with asyncio.timeout(silence):
                await request.content.wait_eof()


def at_once(request: web.BaseRequest, limit: int) -> bytes | None:
    """All bytes, where they have all come already and have no coding, up to `limit`; takes them.

    None, and takes nothing, where not.
    """
    if "Content-Encoding" in request.headers or not _plainly_framed(request):
        return None
    content = request.content
    if not content.is_eof() or content.exception() is not None or content.total_bytes > limit:
        return None
    return content.read_nowait()


def too_slow(seconds: float) -> ProxyError:
    """408 (RFC 9110 section 15.5.9)."""
    return ProxyError(408, f"nothing of the request came for {seconds:g} s; send it again", code="request_timeout")


def too_large(limit: int) -> ProxyError:
    """413 with what to do."""
    return ProxyError(
        413,
        f"the body is larger than {limit} bytes; raise [server] max_body where that is meant",
        code="body_too_large",
    )
