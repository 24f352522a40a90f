"""What to do next with a request, as typed decisions that the pipeline matches exhaustively."""

from __future__ import annotations

from typing import Literal

import msgspec

from samewise.core.controls import Controls
from samewise.core.divergence import Outcome
from samewise.core.entry import Entry
from samewise.core.reason import Reason

Mode = Literal["on", "off", "read-only", "write-only", "frozen"]


class Look(msgspec.Struct, frozen=True):
    """Ask the store."""


class Serve(msgspec.Struct, frozen=True):
    """Answer with this entry; `age` in whole or part seconds."""

    entry: Entry
    age: float


class Fetch(msgspec.Struct, frozen=True):
    """Ask the upstream, sharing the fetch with whoever asks the same. `reason`: why the store had nothing usable."""

    reason: Reason | None = None


class Refresh(msgspec.Struct, frozen=True):
    """Ask the upstream past the cache and past every shared fetch; compare with the entry, keep the new one."""


class Bypass(msgspec.Struct, frozen=True):
    """Ask the upstream for this caller alone, and keep nothing."""

    reason: Reason


class Refuse(msgspec.Struct, frozen=True):
    """504: the answer may only come from the cache, and it isn't there."""

    reason: Reason


class Keep(msgspec.Struct, frozen=True):
    """Store the answer for `ttl` seconds."""

    ttl: float


class Discard(msgspec.Struct, frozen=True):
    """Give the answer to who asked, and store nothing."""

    reason: Reason


class Agreed(msgspec.Struct, frozen=True):
    """One more recomputation said the same."""


class Flag(msgspec.Struct, frozen=True):
    """Keep the record of it, and nothing else."""


class Evict(msgspec.Struct, frozen=True):
    """The entry goes."""


class Replace(msgspec.Struct, frozen=True):
    """The new answer becomes the entry; the old one stays in the record."""


class Quarantine(msgspec.Struct, frozen=True):
    """The key is answered by the upstream until enough recomputations agree with the entry."""


class Ignore(msgspec.Struct, frozen=True):
    """Nothing can be concluded."""


Action = Literal["flag", "evict", "replace", "quarantine"]


def after_verify(verdict: Outcome, action: Action) -> Agreed | Flag | Evict | Replace | Quarantine | Ignore:
    """The fourth decision, about an entry that was recomputed. Only a confirmed divergence costs an entry anything."""
    match verdict:
        case "match":
            return Agreed()
        case "inconclusive":
            return Ignore()
        case "near_tie" | "flaky":
            return Flag()
        case "divergent":
            match action:
                case "flag":
                    return Flag()
                case "evict":
                    return Evict()
                case "replace":
                    return Replace()
                case "quarantine":
                    return Quarantine()


def on_arrival(
    key: str | None, reason: Reason | None, controls: Controls, mode: Mode
) -> Look | Fetch | Refresh | Bypass | Refuse:
    """The first decision, from the plan alone. `reason` says why there is no key."""
    local_only = controls.only_if_cached or mode == "frozen"
    if mode == "off":
        obstacle: Reason | None = Reason.MODE
    elif controls.no_store:
        obstacle = Reason.NO_STORE
    else:
        obstacle = None if key is not None else reason or Reason.MALFORMED
    if obstacle is not None:
        return Refuse(obstacle) if local_only else Bypass(obstacle)
    if local_only:
        return Look()
    if controls.no_cache:
        return Refresh()
    return Fetch() if mode == "write-only" else Look()


def after_lookup(
    entry: Entry | None,
    *,
    now: float,
    controls: Controls,
    mode: Mode,
    ended: bool = False,
    failed: bool = False,
) -> Serve | Fetch | Refuse:
    """The second decision. `ended`: an invalidation came after the entry; `failed`: the store couldn't be asked.

    RFC 9111 section 5.2.1.1: what is served is at most `max-age` seconds old; with 0 nothing recorded is.
    """
    reason: Reason | None = None
    if failed:
        reason = Reason.STORE_DOWN
    elif entry is not None and ended:
        reason = Reason.INVALIDATED
    elif entry is not None and entry.fresh(now):
        age = entry.age(now)
        if controls.max_age is None or 0 < controls.max_age >= age:
            return Serve(entry, age)
        reason = Reason.TOO_OLD
    if controls.only_if_cached or mode == "frozen":
        return Refuse(reason or Reason.NOT_CACHED)
    return Fetch(reason)


def lifetime(controls: Controls, *, default: float, maximum: float) -> float:
    """Seconds that an answer may be kept; 0 or less: not at all."""
    return min(default if controls.ttl is None else controls.ttl, maximum)


def after_fetch(
    *,
    size: int,
    max_size: int,
    ttl: float,
    asked: str | None,
    ran: str | None,
    ended: bool,
    mode: Mode,
) -> Keep | Discard:
    """The third decision, of an answer that is whole.

    `asked` is the environment in the key, `ran` the one that answered, start to end.
    """
    if ran is not None and ran != asked:
        return Discard(Reason.ENVIRONMENT_CHANGED)
    if ended:
        return Discard(Reason.INVALIDATED)
    if mode == "read-only":
        return Discard(Reason.READ_ONLY)
    if ttl <= 0:
        return Discard(Reason.TTL)
    if size > max_size:
        return Discard(Reason.TOO_LARGE)
    return Keep(ttl)
