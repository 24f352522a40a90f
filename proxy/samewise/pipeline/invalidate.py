"""Epochs and ended entries: what administrators declared to be over.

Scopes `all`, `model`, `environment`, `tenant` and `profile` are counters in every key: advancing one makes
new keys. Scopes `tag` and `key` end entries that began before: they are looked at when an entry is read
and when a fill is about to land.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from samewise.core.entry import Entry
from samewise.core.plan import Epochs
from samewise.core.transfer import EpochScope
from samewise.pipeline import told
from samewise.ports import ControlEvent

Scope = Literal["all", "model", "environment", "tenant", "profile", "tag", "key"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EPOCHS: tuple[EpochScope, ...] = get_args(EpochScope)
"""Those whose counts are part of every key."""
KIND = "invalidate"
REMEMBERED = 100_000
"""Single keys whose end is remembered here; the store's own fence holds for the rest."""


def event(
    scope: Scope, value: str, *, by: str, reason: str, at: float, values: Sequence[str] = (), tenant: str = ""
) -> ControlEvent:
    """What goes into the journal. `values`: many at once, instead of `value`. `tenant`: tags of this one alone."""
    said: dict[str, Any] = {"values": list(values)} if values else {"value": value}
    if tenant:
        said["tenant"] = tenant
    return ControlEvent(kind=KIND, subject=scope, values=said, by=by, reason=reason, at=at)


def named(happened: ControlEvent) -> list[str]:
    """The values that an invalidation names. Raises ValueError where they are no texts."""
    return told.texts(happened, "values") or [told.text(happened, "value")]


def tenant_of(happened: ControlEvent) -> str:
    """The tenant whose tags an invalidation names, empty where it names everybody's."""
    return told.text(happened, "tenant")


class Invalidations:
    """The fold of all invalidations so far."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._last: dict[tuple[str, str], int] = {}
        self._tags: dict[tuple[str, str], int] = {}
        self._keys: OrderedDict[str, int] = OrderedDict()

    def apply(self, happened: ControlEvent) -> None:
        """Take in one event of the journal. Raises ValueError where it can't be understood: nothing ends by it."""
        scope, values, tenant = happened.subject, named(happened), tenant_of(happened)
        if scope not in SCOPES:
            raise ValueError("the subject should be a scope")
        for value in values:
            if scope == "key":
                self._keys[value] = happened.number
                self._keys.move_to_end(value)
                if len(self._keys) > REMEMBERED:
                    self._keys.popitem(last=False)
                continue
            self._counts[scope, value] = self._counts.get((scope, value), 0) + 1
            self._last[scope, value] = happened.number
            if scope == "tag":
                self._tags[tenant, value] = happened.number

    def reach(self, epochs: Iterable[tuple[EpochScope, str, int]]) -> None:
        """Advance the counters to at least these, so that keys made under them are made here too."""
        for scope, value, count in epochs:
            self._counts[scope, value] = max(count, self._counts.get((scope, value), 0))

    def epoch_counts(self) -> tuple[tuple[EpochScope, str, int], ...]:
        """Scope, value and count of all that is part of keys."""
        return tuple(
            (known, value, count)
            for (scope, value), count in self._counts.items()
            for known in EPOCHS
            if scope == known
        )

    def count(self, scope: Scope, value: str) -> int:
        """How often this was invalidated."""
        return self._counts.get((scope, value), 0)

    def epochs(self, *, model: str, environment: str, tenant: str, profile: str) -> Epochs:
        """The counters that go into the key of such a request."""
        return Epochs(
            all=self.count("all", ""),
            model=self.count("model", model),
            environment=self.count("environment", environment),
            tenant=self.count("tenant", tenant),
            profile=self.count("profile", profile),
        )

    def since(self, key: str, tags: Iterable[str]) -> int:
        """The number of the last invalidation of this key or of one of these tags, anybody's, which no key tells."""
        return max(self._keys.get(key, 0), *(self._last.get(("tag", tag), 0) for tag in tags), 0)

    def ended(self, entry: Entry) -> bool:
        """True where an invalidation of any scope came after what the entry's fill knew."""
        return self.ended_by(entry) > 0

    def ended_by(self, entry: Entry) -> int:
        """The number of the newest invalidation that came after what the entry's fill knew, 0 where none did."""
        last = self._last
        scopes = (
            ("all", ""),
            ("model", entry.model),
            ("environment", entry.environment),
            ("tenant", entry.tenant),
            ("profile", entry.snapshot.rpartition("@")[0]),
        )
        newest = max((last.get(scope, 0) for scope in scopes), default=0)
        tags = (self._tags.get((tenant, tag), 0) for tag in entry.tags for tenant in ("", entry.tenant))
        newest = max(newest, self._keys.get(entry.key, 0), *tags)
        return newest if newest > entry.began else 0


def matches(entry: Entry, scope: Scope, value: str, tenant: str = "") -> bool:
    """True where an invalidation of this scope and value would end the entry. `tenant`: see `event`."""
    match scope:
        case "all":
            return True
        case "model":
            return entry.model == value
        case "environment":
            return entry.environment == value
        case "tenant":
            return entry.tenant == value
        case "profile":
            return entry.snapshot.rpartition("@")[0] == value
        case "tag":
            return value in entry.tags and tenant in {"", entry.tenant}
        case "key":
            return entry.key == value
