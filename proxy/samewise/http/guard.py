"""Who may use the admin port."""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from samewise.core.errors import ProxyError
from samewise.core.reason import Reason
from samewise.http.limits import Rates

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FAILURES = 10
"""Wrong tokens a minute that an address is answered with 401."""
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Bearer token in constant time; without a token only loopback is let in, under a loopback name.

    The name in `Host` is checked so that a page on another site can't reach the port by DNS rebinding, and
    `Origin` of everything that changes something, so that it can't post a form here. An address that fails more
    often than `FAILURES` in a minute is told 429 for each further failure; the right token is always let in.

    `tell` hears of refusals, and of what leaves a trace in the audit: every change, and every look at prompts.
    """

    def __init__(self, token: str, *, rates: Rates, tell: Callable[[str, dict[str, str]], None]) -> None:
        self._token = token.encode()
        self._rates = rates
        self._tell = tell

    def check(self, request: web.BaseRequest) -> None:
        """Raises ProxyError 401, 403 or 429."""
        if self._token:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            token = given.strip().encode("utf-8", "surrogateescape")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token, self._token):
                raise self._refused(request)
        elif _hostname(request.headers.get("Host", "")) not in _LOOPBACK:
            raise _forbidden("without an admin token the admin port answers only under a loopback name")
        origin = request.headers.get("Origin")
        if (
            request.method not in _SAFE
            and origin is not None
            and urlsplit(origin).netloc != request.headers.get("Host")
        ):
            raise _forbidden("the request comes from another site")

    def admitted(self, request: web.BaseRequest) -> None:
        """It may do what it asks for: tell the audit, where that is a change or a look at prompts."""
        looks = "full" in request.query or request.path.endswith("/export") or "/divergences/" in request.path
        if request.method not in _SAFE or looks:
            self._tell("admin", {"by": by(request), "method": request.method, "path": request.path})

    def _refused(self, request: web.BaseRequest) -> ProxyError:
        remote = request.remote or ""
        wait = math.ceil(self._rates.wait(remote, FAILURES))
        if wait > 0:
            return ProxyError(
                429,
                f"too many wrong admin tokens from this address; wait {wait} s",
                code="too_many_failures",
                reason=Reason.RATE_LIMITED,
                headers=(("retry-after", str(wait)),),
            )
        self._tell("admin-refused", {"remote": remote, "method": request.method, "path": request.path})
        return ProxyError(
            401,
            "the admin token is needed: send it as 'Authorization: Bearer TOKEN'",
            code="invalid_admin_token",
            reason=Reason.UNAUTHORIZED,
            headers=(("www-authenticate", 'Bearer realm="samewise-admin"'),),
        )


def by(request: web.BaseRequest) -> str:
    """Who does it, for the audit: a name that the operator's tool gives, and where it came from."""
    named = "".join(each for each in request.headers.get("x-samewise-operator", "") if each.isprintable())[:64]
    return f"{named or 'admin'}@{request.remote}"


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
                guard.admitted(request)
            return await handler(request)
        except ProxyError as error:
            return error_response(error)
        except web.HTTPException as error:
            told = ProxyError(error.status, error.reason, code=_CODES.get(error.status, "admin_error"))
            response = error_response(told)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response

    return check
