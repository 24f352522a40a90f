"""Who may use the admin port."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from samewise.core.errors import ProxyError
from samewise.core.reason import Reason

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Bearer token in constant time; without a token only loopback is let in, under a loopback name.

    The name in `Host` is checked so that a page on another site can't reach the port by DNS rebinding, and
    `Origin` of everything that changes something, so that it can't post a form here.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self, request: web.BaseRequest) -> None:
        """Raises ProxyError 401 or 403."""
        if self._token:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                raise ProxyError(
                    401,
                    "the admin token is needed: send it as 'Authorization: Bearer TOKEN'",
                    code="invalid_admin_token",
                    reason=Reason.UNAUTHORIZED,
                    headers=(("www-authenticate", 'Bearer realm="samewise-admin"'),),
                )
        elif _hostname(request.headers.get("Host", "")) not in _LOOPBACK:
            raise _forbidden("without an admin token the admin port answers only under a loopback name")
        origin = request.headers.get("Origin")
        if (
            request.method not in _SAFE
            and origin is not None
            and urlsplit(origin).netloc != request.headers.get("Host")
        ):
            raise _forbidden("the request comes from another site")


def _hostname(host: str) -> str:
    return urlsplit(f"//{host}").hostname or ""


def _forbidden(message: str) -> ProxyError:
    return ProxyError(403, message, code="forbidden", reason=Reason.UNAUTHORIZED)


def error_response(error: ProxyError) -> web.Response:
    """An error of the admin port."""
    return web.Response(
        status=error.status, body=error.body(), headers={"Content-Type": "application/json", **dict(error.headers)}
    )


def middleware(guard: Guard, open_paths: frozenset[str]) -> Middleware:
    """Checks every request but those for `open_paths`, and tells errors in JSON."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path not in open_paths:
                guard.check(request)
            return await handler(request)
        except ProxyError as error:
            return error_response(error)
        except web.HTTPException as error:
            told = ProxyError(error.status, error.reason, code="not_found" if error.status == 404 else "admin_error")
            response = error_response(told)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response

    return check
