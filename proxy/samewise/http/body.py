"""The body of a request, whole and bounded."""

from __future__ import annotations

import contextlib

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from samewise.core.errors import ProxyError


async def read(request: web.BaseRequest, limit: int) -> bytes:
    """All bytes, decoded. Raises ProxyError 413 above `limit` bytes, before and after decompression."""
    if request.content_length is not None and request.content_length > limit:
        raise too_large(limit)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


async def there(request: web.BaseRequest) -> None:
    """Return when all bytes have come, or no more will; takes none of them. Only for bodies that fit a buffer."""
    plain = request.content_length is not None and "Content-Encoding" not in request.headers
    if plain and not request.content.is_eof():
        with contextlib.suppress(RequestPayloadError):
            await request.content.wait_eof()


def at_once(request: web.BaseRequest) -> bytes | None:
    """All bytes, where they have all come already; None where some are still to come. Takes them."""
    content = request.content
    return content.read_nowait() if content.is_eof() and content.exception() is None else None


def too_large(limit: int) -> ProxyError:
    """413 with what to do."""
    return ProxyError(
        413,
        f"the body is larger than {limit} bytes; raise [server] max_body where that is meant",
        code="body_too_large",
    )
