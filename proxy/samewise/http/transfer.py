"""Export and import over the admin port, streaming: as much memory as one entry takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from aiohttp import StreamReader, web

from samewise.core.errors import ProxyError
from samewise.http.guard import by
from samewise.pipeline.transfer import Filters, Transfer
from samewise.ports import StoreUnavailable

EXPORT, IMPORT = "/samewise/v1/export", "/samewise/v1/import"
JSON_LINES = "application/jsonl"
MAX_LINE = 128 * 1024 * 1024
"""Bytes of one line, at most."""
_FILTERS = frozenset(Filters.__struct_fields__)


class TransferRoutes:
    """`GET /samewise/v1/export?tenant=&model=&environment=&tag=` and `POST /samewise/v1/import?ttl=SECONDS`."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_route("GET", EXPORT, self._export)
        router.add_route("POST", IMPORT, self._import)

    async def _export(self, request: web.Request) -> web.StreamResponse:
        """Where the store fails in between, the connection ends without the last line."""
        unknown = request.query.keys() - _FILTERS
        if unknown:
            known = ", ".join(sorted(_FILTERS))
            raise ProxyError(400, f"an export is filtered by {known}, not by {min(unknown)}", code="invalid_value")
        lines = self._transfer.export(Filters(**request.query))
        try:
            first = await anext(lines)
        except StoreUnavailable as failure:
            raise ProxyError(
                503, f"the store can't be reached ({failure.kind}); try again later", code="store_unavailable"
            ) from failure
        response = web.StreamResponse(headers={"Content-Type": JSON_LINES, "Cache-Control": "no-store"})
        await response.prepare(request)
        await response.write(first)
        try:
            async for line in lines:
                await response.write(line)
        except StoreUnavailable:
            if request.transport is not None:
                request.transport.close()
            return response
        await response.write_eof()
        return response

    async def _import(self, request: web.Request) -> web.StreamResponse:
        for name in request.query.keys() - {"ttl"}:
            raise ProxyError(400, f"an import takes ttl, not {name}", code="unknown_parameter", param=name)
        done = await self._transfer.take(_lines(request.content), ttl=_ttl(request.query.get("ttl")), by=by(request))
        return web.json_response(msgspec.to_builtins(done))


def _ttl(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        ttl = float(text)
    except ValueError:
        ttl = 0.0
    if not 0 < ttl < float("inf"):
        raise ProxyError(400, f"ttl should be seconds above 0, not {text!r}", code="invalid_value", param="ttl")
    return ttl


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Each line with its end; the last one may have none."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join((*pieces, line, b"\n"))
            pieces, size = [], 0
        if rest:
            pieces.append(rest)
            size += len(rest)
        if size > MAX_LINE:
            raise ProxyError(413, f"a line is longer than {MAX_LINE} bytes", code="line_too_long")
    if pieces:
        yield b"".join(pieces)
