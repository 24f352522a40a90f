"""What of a request a backend may have in its prefix cache: everything that comes first in the prompt, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise.core import canonical

_BEFORE = (
    "model",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "tools",
    "functions",
    "instructions",
    "system",
)
_PROMPTS = ("messages", "prompt", "input", "query", "text_1")
_SEPARATOR = b"\x1e"


def prompt_prefix(request: Mapping[str, Any]) -> bytes:
    """Bytes of which a longer conversation's begin with a shorter one's.

    Routing alone depends on them: what is left out here costs reuse, never correctness.
    """
    parts = [canonical.encode(request.get(name)) for name in _BEFORE]
    for name in _PROMPTS:
        value = request.get(name)
        if isinstance(value, list):
            parts.extend(canonical.encode(item) for item in value)
        elif value is not None:
            parts.append(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else canonical.encode(value))
    return _SEPARATOR.join(parts)
