"""What a request means, before anything is asked: its key, what is sent on, and why it is (not) cacheable."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from samewise.core.controls import Controls
from samewise.core.fingerprint import Environment
from samewise.core.reason import Reason


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable, numbered version of a sampling profile. `values` fill fields that a request left out."""

    profile: str
    version: int
    values: dict[str, Any] = {}

    def label(self) -> str:
        """`NAME@N`, as `x-samewise-snapshot` shows it."""
        return f"{self.profile}@{self.version}"


class Epochs(msgspec.Struct, frozen=True, kw_only=True):
    """The counters that an administrator advanced, as far as they concern one request."""

    all: int = 0
    model: int = 0
    environment: int = 0
    tenant: int = 0
    profile: int = 0


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides how a body is understood, beside the body. Taken once, at the door.

    `environment` is None where nothing is known of the backend. `number` is the last control event
    that the epochs and the snapshot are made from. `unseeded` is the setting of that name;
    `assume_defaults` lets a request be cached although the backend's defaults are unknown. `salt` is the
    tenant's `cache_salt` for the engine's prefix cache: sent, never keyed, and never over a client's own.
    """

    tenant: str = ""
    environment: Environment | None = None
    snapshot: Snapshot = Snapshot(profile="default", version=1)
    epochs: Epochs = Epochs()
    number: int = 0
    unseeded: Literal["bypass", "pin", "record"] = "bypass"
    assume_defaults: bool = False
    salt: str = ""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One question with one answer of its own: what is keyed, asked and stored.

    `key` is 64 hex digits, None where `reason` says why it can't be described. `preimage` is what the
    key is the SHA-256 of. `request` is the effective request without delivery: what the key describes,
    and what is sent (with the delivery that this caller wants). `origins` tells where each member came
    from: `request`, `NAME@N`, `manifest`, `engine`, `pin`.
    """

    request: dict[str, Any]
    key: str | None = None
    preimage: bytes = b""
    reason: Reason | None = None
    seed: int | None = None
    pinned: bool = False
    origins: dict[str, str] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request, understood. Most have one unit; a list of prompts or inputs has one for each.

    `together`: missing units are asked in one upstream call (embeddings), else each in its own.
    `delivery` are the members of the body that change only how the answer travels.
    `raw` is the client's body where it can be sent on unchanged, None where it must be written anew.
    `relayed`: nobody here knows whether a stream was asked for, so the answer keeps the form in which it comes.
    `order` are the names of the client's members, in its order.
    """

    family: str
    path: str
    model: str
    stream: bool
    include_usage: bool
    controls: Controls
    context: Context
    units: tuple[Unit, ...]
    delivery: dict[str, Any] = {}
    together: bool = False
    raw: bytes | None = None
    order: tuple[str, ...] = ()
    relayed: bool = False
