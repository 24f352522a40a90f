"""What of a request a backend may have in its prefix cache: everything that comes first in the prompt, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samewise.core import canonical
from samewise.core.salt import MEMBER

_BEFORE = (
    "model",
    MEMBER,
    "chat_template",
    "chat_template_kwargs",
    "tools",
    "functions",
    "instructions",
    "system",
)
_PROMPTS = ("messages", "prompt", "input", "query", "text_1")
_SEPARATOR = b"\x1e"


def prompt_prefix(request: Mapping[str, Any], salt: str = "") -> bytes:
    """Bytes of which a longer conversation's begin with a shorter one's.

    `salt`: the `cache_salt` that is sent where the request has none of its own. Routing alone depends on them:
    what is left out here costs reuse, never correctness.
    """
    before = {MEMBER: salt or None, **request}
    parts = [canonical.encode(before.get(name)) for name in _BEFORE]
    for name in _PROMPTS:
        value = request.get(name)
        if isinstance(value, list):
            parts.extend(canonical.encode(item) for item in value)
        elif value is not None:
            parts.append(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else canonical.encode(value))
    return _SEPARATOR.join(parts)
