"""Questions that nobody has asked before."""

from __future__ import annotations

import itertools
import os
from typing import Any

from tests.support.proxy import B0

Body = dict[str, Any]
_numbers = itertools.count(1)


def new_text() -> str:
    """A text that no test has used, in this process or another."""
    return f"hi {os.getpid()} {next(_numbers)}"


def fresh(**changes: Any) -> Body:
    """A reproducible chat request of its own; `changes` are set, None too."""
    return {**B0, "messages": [{"role": "user", "content": new_text()}], **changes}


def without(body: Body, *names: str) -> Body:
    """The same with these members left out."""
    return {name: value for name, value in body.items() if name not in names}
