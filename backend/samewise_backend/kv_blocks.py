"""Keys and values of prompts computed before, in blocks, bounded in bytes.

A prompt is always computed in blocks of the same size from its start, whether or not some of them are found here: each
forward pass has the shapes and the inputs that it would have had otherwise, and so the same bits.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from samewise_backend.language_model import Context, Layers, size_of

BLOCK = 64
"""Tokens of a block."""
MOST = 256 << 20
"""Bytes of keys and values that are kept."""


@dataclass(frozen=True)
class _Block:
    layers: Layers
    size: int


class KvBlocks:
    """Implements `PrefixReuse`; the least recently used block goes first. Only the engine's thread may call it.

    A block's name is the SHA-256 over the environment, the salt and every token up to its end. `environment` says
    what the engine is now; `size` is in tokens, `most` in bytes.
    """

    def __init__(self, environment: Callable[[], str], *, size: int = BLOCK, most: int = MOST) -> None:
        self._environment = environment
        self._size = size
        self._most = most
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self.bytes = 0
        """Bytes of what is kept now; never above `most`."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, tokens: Sequence[int], salt: str | None) -> Context | None:
        """The longest run of whole blocks from the start that leaves at least one token to compute."""
        found: list[bytes] = []
        for name in self._names(tokens[: max(0, len(tokens) - 1)], salt):
            if name not in self._blocks:
                break
            found.append(name)
        if not found:
            return None
        self._touch(found)
        length = len(found) * self._size
        return Context.of([self._blocks[name].layers for name in found], tokens[:length])

    def keep(self, context: Context, salt: str | None) -> None:
        """Copies of the prompt's whole blocks, from the first as many as there is room for."""
        names = list(self._names(context.tokens, salt))
        self._touch([name for name in names if name in self._blocks])
        own = 0
        for at, name in enumerate(names):
            block = self._blocks.get(name)
            if block is None:
                layers = context.cut(at * self._size, (at + 1) * self._size)
                block = _Block(layers, size_of(layers))
            own += block.size
            if own > self._most:
                names = names[:at]
                break
            if name not in self._blocks:
                self._make_room(block.size)
                self._blocks[name] = block
                self.bytes += block.size
        self._touch([name for name in names if name in self._blocks])

    def _make_room(self, size: int) -> None:
        while self._blocks and self.bytes + size > self._most:
            _, gone = self._blocks.popitem(last=False)
            self.bytes -= gone.size

    def _touch(self, chain: Sequence[bytes]) -> None:
        """The first block of a chain is the last to go: without it the others can't be found."""
        for name in reversed(chain):
            self._blocks.move_to_end(name)

    def _names(self, tokens: Sequence[int], salt: str | None) -> Iterator[bytes]:
        link = hashlib.sha256(json.dumps([self._environment(), salt]).encode()).digest()
        for start in range(0, len(tokens) - self._size + 1, self._size):
            link = hashlib.sha256(link + array("q", tokens[start : start + self._size]).tobytes()).digest()
            yield link
