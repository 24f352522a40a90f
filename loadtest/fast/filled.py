"""A proxy whose memory tier is filled before it is asked: `python -m loadtest.fast.filled UPSTREAM ENTRIES FILE`.

Prints its base URL; the file says how many bytes an entry takes beside its own payload.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from loadtest.stage import KEY, resident
from samewise.assembly import service
from samewise.core.answer import Answer
from samewise.core.entry import Entry
from samewise.settings import load
from samewise.store import factory
from samewise.store.memory import MemoryStore

BODY = 64


def entry(number: int) -> Entry:
    """An entry that nobody asks for, with a payload of its own."""
    text = f"{number:0{BODY}}".encode()
    return Entry(
        key=hashlib.sha256(text).hexdigest(),
        created=time.time(),
        ttl=86400.0,
        began=0,
        tenant="load",
        family="chat",
        model="m",
        environment="0" * 32,
        snapshot="default@1",
        request=text,
        answer=Answer(form="json", headers=(("content-type", "application/json"),), body=b"%b" % text[::-1]),
    )


async def _serve(upstream: str, entries: int) -> None:
    kept: list[MemoryStore] = []

    class Kept(MemoryStore):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            kept.append(self)

    setattr(factory, "MemoryStore", Kept)  # noqa: B010
    flags: dict[str, Any] = {
        "server.port": 0,
        "admin.port": 0,
        "store.url": "memory://",
        "store.memory": 1 << 40,
        "verify.rate": 0.0,
        "auth.keys": [{"tenant": "load", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "upstreams": [{"url": upstream}],
    }
    async with service.running(load(Path("/dev/null"), flags)) as serving:
        gc.collect()
        before = resident()
        for number in range(entries):
            kept[0].keep(msgspec.structs.replace(entry(number)))
        gc.collect()
        payload = entries * (64 + 2 * BODY)
        overhead = (resident() - before - payload) / max(entries, 1)
        await asyncio.to_thread(Path(sys.argv[3]).write_text, f"{overhead:.1f}")
        print(f"{serving.url}/v1", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1], int(sys.argv[2])))
