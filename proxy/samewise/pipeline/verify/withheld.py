"""What verification has the proxies not serve: entries in quarantine, environments that are paused. The fold of
the journal's events about it, the same for every proxy on the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from samewise.core.entry import Entry
from samewise.pipeline import told
from samewise.ports import ControlEvent

QUARANTINE, RELEASE = "verify-quarantine", "verify-release"
EVICT, REPLACE = "verify-evict", "verify-replace"
DEGRADED, RECOVERED = "consistency-degraded", "consistency-recovered"
KINDS = frozenset({QUARANTINE, RELEASE, EVICT, REPLACE, DEGRADED, RECOVERED})
REMEMBERED = 100_000
"""Entries in quarantine at most; the one that has been there longest is let go."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An environment below its floor: since when (seconds since the epoch), and whether its caching is paused."""

    number: int
    at: float
    paused: bool


class Withheld:
    """Follows the journal."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._episodes: dict[str, Episode] = {}

    def apply(self, happened: ControlEvent) -> None:
        """Take in one event. Raises ValueError where it can't be understood: nothing changes by it."""
        match happened.kind:
            case "verify-quarantine":
                self._entries[happened.subject] = recording(happened)
                if len(self._entries) > REMEMBERED:
                    self._entries.popitem(last=False)
            case "verify-release":
                if self._entries.get(happened.subject) == recording(happened):
                    del self._entries[happened.subject]
            case "consistency-degraded":
                known = self._episodes.get(happened.subject)
                if known is None:
                    paused = happened.values.get("paused") is True
                    self._episodes[happened.subject] = Episode(number=happened.number, at=happened.at, paused=paused)
            case "consistency-recovered":
                self._episodes.pop(happened.subject, None)
            case _:
                pass

    def holds(self, entry: Entry) -> bool:
        """True where this very recording may not be served now."""
        if not self._entries and not self._episodes:
            return False
        return self._entries.get(entry.key) == (entry.created, entry.began) or self.pauses(entry.environment)

    def quarantined(self, entry: Entry) -> bool:
        """True where this very recording is in quarantine."""
        return self._entries.get(entry.key) == (entry.created, entry.began)

    def pauses(self, environment: str) -> bool:
        """True where nothing of this environment is served from the cache, or kept."""
        episode = self._episodes.get(environment)
        return episode is not None and episode.paused

    def episode(self, environment: str) -> Episode | None:
        """The episode that it is in."""
        return self._episodes.get(environment)

    def episodes(self) -> list[str]:
        """Environments below their floor."""
        return list(self._episodes)

    def __len__(self) -> int:
        return len(self._entries)


def recording(happened: ControlEvent) -> tuple[float, int]:
    """Which recording of the key (its subject) an event is about. Raises ValueError where it doesn't say."""
    return float(told.number(happened, "created")), int(told.number(happened, "began"))


def about(entry: Entry) -> dict[str, float | int]:
    """What names a recording in an event."""
    return {"created": entry.created, "began": entry.began}


def gone(happened: ControlEvent) -> Callable[[Entry], Entry | None]:
    """The revision that removes exactly this recording."""
    named = recording(happened)
    return lambda entry: None if (entry.created, entry.began) == named else entry
