"""How a journal holds its events. What can't be read is an event of its own kind: it holds a number like the rest."""

from __future__ import annotations

import msgspec

from samewise.ports import UNREADABLE, ControlEvent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ControlEvent)


def encode(event: ControlEvent) -> bytes:
    """The event without its number, which its place in the journal tells."""
    return _encoder.encode(msgspec.structs.replace(event, number=0))


def decode(data: bytes, number: int) -> ControlEvent:
    """The event at this number; one of kind UNREADABLE where the bytes are none."""
    try:
        event = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return ControlEvent(kind=UNREADABLE, subject="", number=number)
    return msgspec.structs.replace(event, number=number)
