"""An upstream's answer, for who waits for its end."""

from __future__ import annotations

from samewise.core.answer import Answer, Event
from samewise.ports import Exchange


async def whole(exchange: Exchange) -> Answer:
    """All of it, whatever its status. Raises UpstreamFailed where it was cut or fell silent. The caller closes."""
    if exchange.streaming and exchange.status == 200:
        events: list[Event] = [event async for burst in exchange.bursts() for event in burst]
        return Answer(form="sse", headers=exchange.headers, events=tuple(events))
    return Answer(form="json", status=exchange.status, headers=exchange.headers, body=await exchange.read())
