"""Messages over a stream of bytes: four bytes of length, then msgpack."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

_LONGEST = 256 << 20


def write(writer: asyncio.StreamWriter, message: Any) -> None:
    """Queue one message."""
    data = msgspec.msgpack.encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)


async def read(reader: asyncio.StreamReader) -> bytes | None:
    """The next message, still msgpack; None where the other side is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size) if size <= _LONGEST else None
    except (asyncio.IncompleteReadError, OSError):
        return None
