"""JSON objects in files, read as strictly as the proxy reads a body: a member that comes twice is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from samewise.cli.client import USAGE, Fail
from samewise.core.body import parse
from samewise.core.errors import ProxyError


def read(name: str) -> bytes:
    """The bytes of the file; `-` is stdin. Raises Fail."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Fail(f"{name} can't be read: {error.strerror or error}", USAGE) from None


def read_object(name: str, what: str) -> dict[str, Any]:
    """The JSON object in the file, which holds `what`. Raises Fail."""
    try:
        return parse(read(name))
    except ProxyError as error:
        message = error.message.removeprefix("The body ")
        raise Fail(f"{name} should hold a JSON object, {what}; it {message}", USAGE) from None
