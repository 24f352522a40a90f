"""Events one by one, for a test to which it is all the same which of them came together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from samewise.core.answer import Event


async def each(bursts: AsyncIterator[Sequence[Event]]) -> AsyncIterator[Event]:
    """Every event, as it comes."""
    async for burst in bursts:
        for event in burst:
            yield event
