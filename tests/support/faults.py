"""Questions whose right answer anyone can tell, for tests that break things."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import zstandard

from tests.support.proxy import B0, Answered, Proxy


def prompt(text: str, **more: Any) -> dict[str, Any]:
    """A cacheable request with this as its only message."""
    return {**B0, "messages": [{"role": "user", "content": text}], **more}


def echo(body: dict[str, Any], number: int) -> str:
    """For `MockBackend.text`: the last message between marks, and a number that no other call has."""
    return f"<<{body['messages'][-1]['content']}>> nonce {number} end"


def echoed(body: Mapping[str, Any], answer: Answered) -> bool:
    """True where the answer is one to this request."""
    return answer.text.startswith(f"<<{body['messages'][-1]['content']}>> nonce ") and answer.text.endswith(" end")


def readable(reply: bytes) -> bytes:
    """What a reader of Redis sees of an entry that GET answers with: past its head, and decompressed where it is."""
    data = reply.partition(b"\r\n")[2][36:]
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


async def ask(proxy: Proxy, body: Mapping[str, Any], **headers: str) -> Answered:
    return await proxy.post(dict(body), headers=headers)


async def answers(proxy: Proxy, bodies: Sequence[dict[str, Any]]) -> list[Answered]:
    """All at once, in their order."""
    return list(await asyncio.gather(*(proxy.post(body) for body in bodies)))
