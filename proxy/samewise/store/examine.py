"""What a store says of itself to somebody who looks for trouble."""

from __future__ import annotations

from typing import Any

from samewise.ports import Clock, StoreUnavailable
from samewise.store.redis_errors import REACHABLE
from samewise.store.redis_link import RedisLink


async def redis_facts(link: RedisLink, clock: Clock) -> dict[str, Any]:
    """`available`, `error`, `version`, `maxmemory`, `policy`, `persistent`, `skew` (seconds ahead of our clock).

    What Redis doesn't tell (an ACL, a managed service) is left out, and `hidden` says why. Raises nothing.
    """
    try:
        seconds, micro = await link.call("TIME", operation="examine")
    except StoreUnavailable as error:
        return {"available": True, "hidden": error.kind} if error.kind in REACHABLE else _away(error)
    facts: dict[str, Any] = {"available": True, "skew": int(seconds) + int(micro) / 1e6 - clock.now()}
    try:
        told = _lines(await link.call("INFO", operation="examine"))
        facts["version"] = told.get("redis_version")
        facts["maxmemory"] = int(told.get("maxmemory", 0))
        facts["policy"] = told.get("maxmemory_policy")
        saves = _pairs(await link.call("CONFIG", "GET", "save", operation="examine")).get("save", "")
        facts["persistent"] = told.get("aof_enabled") == "1" or bool(saves)
    except StoreUnavailable as error:
        if error.kind not in REACHABLE:
            return _away(error)
        facts["hidden"] = error.kind
    return facts


def _away(error: StoreUnavailable) -> dict[str, Any]:
    return {"available": False, "error": error.kind}


def _lines(text: Any) -> dict[str, str]:
    if isinstance(text, dict):
        return {_text(name): _text(value) for name, value in text.items()}
    lines = _text(text).splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _pairs(reply: Any) -> dict[str, str]:
    if isinstance(reply, dict):
        return {_text(name): _text(value) for name, value in reply.items()}
    values = [_text(item) for item in reply or ()]
    return dict(zip(values[::2], values[1::2], strict=False))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
