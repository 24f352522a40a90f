"""How many requests this process can hold at once."""

from __future__ import annotations

import resource

_OTHERS = 256
"""Open files that are not connections of requests: stores, logs, sockets that listen."""
_EACH = 2
"""Open files of one request: the client's connection and the upstream's."""


def raise_file_limit() -> int:
    """Let this process open as many files as it may; that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft
    return hard


def requests(wanted: int, files: int) -> int:
    """What is `wanted`, or what so many open `files` are enough for; at least one."""
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (files - _OTHERS) // _EACH))
