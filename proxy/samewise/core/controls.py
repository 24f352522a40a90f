"""What a request asks of the cache, from its headers and from LiteLLM's `cache` member of the body."""

from __future__ import annotations

import msgspec


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """Request controls. Times are in seconds; None means: not said."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    ttl: float | None = None
    sample: int = 0
    tags: tuple[str, ...] = ()
    namespace: str = ""
