"""Which headers travel through a proxy (RFC 9110 section 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

from samewise.core.answer import Headers

_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-authentication-info",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)
_OURS_TO_SET = frozenset({"host", "content-length", "accept-encoding", "expect"})


def _end_to_end(headers: Iterable[tuple[str, str]], drop: frozenset[str]) -> Headers:
    lowered = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in lowered if name == "connection" for token in value.split(",")}
    return tuple((name, value) for name, value in lowered if name not in drop and name not in named)


_REQUEST_DROP = _HOP | _OURS_TO_SET
_RESPONSE_DROP = _HOP | {"content-length", "content-encoding"}
_HEAD_DROP = _HOP


def outgoing(headers: Iterable[tuple[str, str]], api_key: str) -> Headers:
    """A client's headers as they may reach the upstream; names in lower case, order kept.

    Nothing of the hop, nothing that `Connection` names, nothing that this hop decides (host, framing,
    codings). With an `api_key` the client's own credentials stay behind.
    """
    kept = _end_to_end(headers, _REQUEST_DROP)
    if not api_key:
        return kept
    return (*(item for item in kept if item[0] != "authorization"), ("authorization", f"Bearer {api_key}"))


def incoming(headers: Iterable[tuple[str, str]], *, body: bool = True) -> Headers:
    """An upstream's headers as they may reach a client; without framing and codings, since the body is decoded."""
    return _end_to_end(headers, _RESPONSE_DROP if body else _HEAD_DROP)
