"""The body of a request, whole and bounded."""

from __future__ import annotations

from aiohttp import web

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
