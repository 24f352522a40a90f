"""What an operator says of an upstream, as plain values."""

from __future__ import annotations

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds. `connect`: until a connection stands (name look-up included).

    `first_byte`: from the start until the first byte of the body, the time in the upstream's queue
    included. `idle`: silence between two bytes after that, counted only while somebody wants to read.
    `total`: the whole exchange.
    """

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 120.0
    total: float = 3600.0


class UpstreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream. `url` is the base URL as an OpenAI client takes it, with its `/v1`.

    `api_key` replaces the client's own Authorization; empty: the client's travels on. `environment` is
    `auto` or a label that an operator vouches with. `probe` is the time in seconds between looks at the
    answers of a server that has no contract; 0 asks it nothing. `resolve`: each address behind the URL's name
    is an upstream of its own.
    """

    url: str
    api_key: str = ""
    environment: str = "auto"
    probe: float = 30.0
    resolve: bool = False
