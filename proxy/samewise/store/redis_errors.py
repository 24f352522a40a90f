"""What can go wrong with a Redis, in bounded words."""

from __future__ import annotations

import socket

from redis import exceptions

REACHABLE = frozenset({"oom", "readonly", "misconf", "noperm", "wrongtype", "noscript", "error"})
"""Refusals of one command by a server that is there: they don't open the circuit."""

_PREFIXES = {
    "OOM": "oom",
    "READONLY": "readonly",
    "LOADING": "loading",
    "MASTERDOWN": "masterdown",
    "NOAUTH": "noauth",
    "WRONGPASS": "noauth",
    "NOPERM": "noperm",
    "MISCONF": "misconf",
    "NOREPLICAS": "misconf",
    "WRONGTYPE": "wrongtype",
    "CLUSTERDOWN": "clusterdown",
    "TRYAGAIN": "clusterdown",
    "BUSY": "busy",
}


def kind_of(error: BaseException) -> str:
    """One word, the same for the same fault whatever the release of the server or the client says."""
    match error:
        case exceptions.OutOfMemoryError():
            return "oom"
        case exceptions.ReadOnlyError():
            return "readonly"
        case exceptions.BusyLoadingError():
            return "loading"
        case exceptions.NoScriptError():
            return "noscript"
        case exceptions.MasterDownError():
            return "masterdown"
        case exceptions.AuthenticationError() | exceptions.AuthenticationWrongNumberOfArgsError():
            return "noauth"
        case exceptions.NoPermissionError():
            return "noperm"
        case exceptions.ClusterDownError() | exceptions.TryAgainError():
            return "clusterdown"
        case exceptions.TimeoutError() | TimeoutError():
            return "timeout"
        case exceptions.InvalidResponse():
            return "protocol"
    text = str(error)
    for prefix, word in _PREFIXES.items():
        if text.startswith(prefix) or f"-{prefix} " in text:
            return word
    if isinstance(error, exceptions.ConnectionError | exceptions.RedisClusterException | OSError):
        return _connection(error, text)
    if isinstance(error, exceptions.ResponseError):
        return "too-many-clients" if "max number of clients" in text else "error"
    return "protocol"


def _connection(error: BaseException, text: str) -> str:
    chain: BaseException | None = error
    while chain is not None:
        match chain:
            case ConnectionRefusedError() | FileNotFoundError():
                return "refused"
            case socket.gaierror():
                return "dns"
            case TimeoutError() | exceptions.TimeoutError():
                return "timeout"
        if "certificate" in str(chain).lower() or "SSL" in str(chain):
            return "tls"
        chain = chain.__cause__ or chain.__context__
    if "max number of clients" in text:
        return "too-many-clients"
    return "sentinel" if "No master found" in text or "No slave found" in text else "disconnected"
