"""A small Lua script, sent as its digest and in full only to a server that doesn't know it yet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from samewise.ports import StoreUnavailable
from samewise.store.redis_link import RedisLink


class Script:
    """Atomic on the server. All keys must be in one slot of a Cluster."""

    def __init__(self, source: str) -> None:
        self._source = source.strip()
        self._digest = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self,
        link: RedisLink,
        keys: Sequence[str],
        values: Sequence[str | bytes | int],
        *,
        operation: str,
        insist: bool = False,
    ) -> Any:
        """The script's reply. Raises StoreUnavailable. `insist`: see `RedisLink.call`."""
        words = (len(keys), *keys, *values)
        try:
            return await link.call("EVALSHA", self._digest, *words, operation=operation, insist=insist)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        return await link.call("EVAL", self._source, *words, operation=operation, insist=insist)
