"""What each upstream has seen lately, in blocks of prompt, and which blocks many prompts share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import xxhash

BYTES_PER_TOKEN = 4
"""Bytes of text in a token, about: the size of a block in bytes follows from the backend's in tokens."""
DEFAULT_BLOCK = 64
"""Tokens of a block, where the backend doesn't say."""
REMEMBERED = 200_000
"""Blocks that are remembered, over all upstreams."""
SHARED_BY = 4
"""Different continuations that make a block common property: it is soon warm everywhere."""


def blocks(prefix: bytes, tokens: int = DEFAULT_BLOCK) -> tuple[int, ...]:
    """A chain of 64-bit hashes, one a whole block; each stands for all bytes up to its end.

    A prefix shorter than a block is one block of its own.
    """
    size = max(1, tokens) * BYTES_PER_TOKEN
    return tuple(_chain(prefix, size)) or (xxhash.xxh3_64_intdigest(prefix),)


def _chain(prefix: bytes, size: int) -> Iterator[int]:
    link = 0
    for start in range(0, len(prefix) - size + 1, size):
        link = xxhash.xxh3_64_intdigest(prefix[start : start + size], seed=link)
        yield link


class _Block:
    __slots__ = ("continuations", "urls")

    def __init__(self) -> None:
        self.urls: set[str] = set()
        self.continuations: set[int] = set()


class Seen:
    """A bounded record; the least recently seen block is forgotten first."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._blocks: OrderedDict[int, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def depth(self, url: str, chain: Sequence[int]) -> int:
        """Leading blocks of the chain that the upstream has seen."""
        for at, link in enumerate(chain):
            block = self._blocks.get(link)
            if block is None or url not in block.urls:
                return at
        return len(chain)

    def common(self, chain: Sequence[int]) -> int:
        """Leading blocks of the chain that many different prompts begin with."""
        for at in range(len(chain) - 1, -1, -1):
            block = self._blocks.get(chain[at])
            if block is not None and len(block.continuations) >= SHARED_BY:
                return at + 1
        return 0

    def note(self, url: str, chain: Sequence[int]) -> None:
        """The upstream is about to see it."""
        for at, link in enumerate(chain):
            block = self._blocks.get(link)
            if block is None:
                block = self._blocks[link] = _Block()
            self._blocks.move_to_end(link)
            block.urls.add(url)
            if at + 1 < len(chain) and len(block.continuations) < SHARED_BY:
                block.continuations.add(chain[at + 1])
        while len(self._blocks) > self._remembered:
            self._blocks.popitem(last=False)

    def forget(self, url: str) -> None:
        """The upstream began anew: its cache is cold."""
        for block in self._blocks.values():
            block.urls.discard(url)
