"""Errors that the proxy itself answers with, in the shape of OpenAI's API."""

from __future__ import annotations

import msgspec

from samewise.core.reason import Reason


class ProxyError(Exception):
    """A refusal that reaches the user: an HTTP status and `{"error": {message, type, param, code}}`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        reason: Reason = Reason.BAD_REQUEST,
        param: str | None = None,
        kind: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.reason = reason
        self.param = param
        self.kind = kind or _kind(status)
        self.headers = headers

    def body(self) -> bytes:
        """JSON in UTF-8."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def bad_request(message: str, *, code: str, param: str | None = None) -> ProxyError:
    """400: the request can't be understood, and saying it again won't help."""
    return ProxyError(400, message, code=code, param=param)


def _kind(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
