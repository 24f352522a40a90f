"""A process that writes entries until it is killed: `writer.py URL FIRST`; prints how many are on the disk."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from samewise.store.factory import open_store
from tests.support.entries import make_entry


class Real:
    """Time as it is."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


async def main(url: str, first: int) -> None:
    errors: list[str] = []
    stores = await open_store(
        url, clock=Real(), timeout=5.0, on_notice=lambda kind, told: errors.append(told.get("error", kind))
    )
    number = first
    while True:
        for _ in range(20):
            await stores.store.put(make_entry(f"n{number}", body=b"%d " % number * 300, created=time.time()))
            number += 1
        try:
            await stores.store.flush()
        except Exception as error:
            print("flush", type(error).__name__, error, flush=True)
        print("errors" if errors else "done", *(sorted(set(errors)) or [str(number)]), flush=True)
        errors.clear()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
