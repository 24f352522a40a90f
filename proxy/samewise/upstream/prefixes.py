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
"""Blocks that are remembered at most, over all upstreams; one takes about 200 bytes."""
EACH = 32_768
"""Blocks that are remembered for each upstream."""
SHARED_BY = 4
"""Different continuations that make a block common property: it is soon warm everywhere."""
_FOLLOWERS = 7


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


class Seen:
    """A bounded record; the least recently seen block is forgotten first.

    A block is one whole number: how many blocks were seen to follow it, in the lowest bits, and above them one bit for
    each upstream that has seen it.
    """

    def __init__(self, remembered: int = REMEMBERED, each: int = EACH) -> None:
        self._remembered = remembered
        self._each = each
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def depth(self, url: str, chain: Sequence[int]) -> int:
        """Leading blocks of the chain that the upstream has seen."""
        bit = self._bits.get(url, 0)
        for at, link in enumerate(chain):
            if not self._blocks.get(link, 0) & bit:
                return at
        return len(chain)

    def common(self, chain: Sequence[int]) -> int:
        """Leading blocks of the chain that many different prompts begin with."""
        for at in range(len(chain) - 1, -1, -1):
            if self._blocks.get(chain[at], 0) & _FOLLOWERS >= SHARED_BY:
                return at + 1
        return 0

    def note(self, url: str, chain: Sequence[int]) -> None:
        """The upstream is about to see it."""
        bit = self._bit(url)
        blocks, before = self._blocks, 0
        for link in chain:
            known = blocks.get(link)
            if known is None and before and blocks[before] & _FOLLOWERS < SHARED_BY:
                blocks[before] += 1
            blocks[link] = (known or 0) | bit
            blocks.move_to_end(link)
            before = link
        most = min(self._remembered, self._each * len(self._bits))
        while len(blocks) > most:
            blocks.popitem(last=False)

    def forget(self, url: str) -> None:
        """The upstream began anew, its cache cold, or is gone."""
        bit = self._bits.pop(url, 0)
        for link, block in self._blocks.items():
            self._blocks[link] = block & ~bit

    def _bit(self, url: str) -> int:
        """Where the upstream is told in a block: the lowest bit that is nobody's."""
        bit = self._bits.get(url)
        if bit is None:
            bit = _FOLLOWERS + 1
            while bit in self._bits.values():
                bit <<= 1
            self._bits[url] = bit
        return bit
