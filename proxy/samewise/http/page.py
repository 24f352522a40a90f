"""The dashboard's files at `/` of the admin port, and the recent past that it begins with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from samewise.core.errors import ProxyError

FILES = Path(__file__).parent / "dashboard"
RECENT = "/samewise/v1/recent"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
OPEN_PATHS = frozenset(
    "/" if path.name == "index.html" else f"/dashboard/{path.name}" for path in FILES.iterdir() if path.suffix in _TYPES
)
"""Where the files are; they know nothing, so nobody needs a token for them."""
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MOST = 512


class Page:
    """Everything that the files show is asked of the API, with the operator's token.

    `recent` gives the last requests and notices, newest first, ready for JSON.
    """

    def __init__(self, recent: Callable[[int], Awaitable[list[dict[str, Any]]]]) -> None:
        self._recent = recent
        self._files = {path: _file(path.rpartition("/")[2] or "index.html") for path in OPEN_PATHS}

    def add_to(self, router: web.UrlDispatcher) -> None:
        for path in self._files:
            router.add_get(path, self._file)
        router.add_route("GET", RECENT, self._told)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        body, kind = self._files[request.path]
        return web.Response(body=body, headers={"Content-Type": kind, **HEADERS})

    async def _told(self, request: web.Request) -> web.StreamResponse:
        limit = request.query.get("limit", "100")
        if not limit.isdecimal() or not 0 < int(limit) <= MOST:
            raise ProxyError(400, f"limit should be from 1 to {MOST}", code="invalid_value", param="limit")
        return web.json_response({"items": await self._recent(int(limit))})


def _file(name: str) -> tuple[bytes, str]:
    path = FILES / name
    return path.read_bytes(), _TYPES[path.suffix]
