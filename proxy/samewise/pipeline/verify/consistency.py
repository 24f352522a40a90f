"""The share of verifications that agreed, over sliding windows, by environment and by upstream. No clock of its own."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from samewise.core.statistics import wilson

WINDOW = 1000
"""Verifications of an environment that are looked at, the newest."""
AGE = 6 * 3600.0
"""Seconds after which they are forgotten."""
SAMPLES = 5
"""Verifications without which nothing is said of an environment."""
DIVERGENT = 3
"""Divergences without which no environment falls: one is an event, not a level."""
CLEAN = 50
"""Agreeing verifications in a row that end an episode."""
_ENVIRONMENTS = 64

State = Literal["unknown", "ok", "degraded"]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What is aimed at (`target`), and below what an environment counts as degraded (`floor`)."""

    target: float
    floor: float


class Seen(NamedTuple):
    """One verification."""

    at: float
    agreed: bool
    member: str


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How many agreed, as a share with its Wilson interval; `ratio` None where there were none."""

    checked: int
    agreed: int
    ratio: float | None
    low: float
    high: float

    @staticmethod
    def of(seen: Iterable[Seen]) -> Share:
        listed = list(seen)
        return Share.counted(sum(each.agreed for each in listed), len(listed))

    @staticmethod
    def counted(agreed: int, checked: int) -> Share:
        interval = wilson(agreed, checked)
        ratio = agreed / checked if checked else None
        return Share(checked=checked, agreed=agreed, ratio=ratio, low=interval.low, high=interval.high)


class Window:
    """One environment's."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=WINDOW)
        self.clean = 0
        self.blamed: dict[str, int] = {}

    def add(self, seen: Seen, blamed: Iterable[str]) -> None:
        self._seen.append(seen)
        self.clean = self.clean + 1 if seen.agreed else 0
        for member in blamed:
            self.blamed[member] = self.blamed.get(member, 0) + 1
        while self._seen and self._seen[0].at < seen.at - AGE:
            self._seen.popleft()

    def share(self) -> Share:
        return Share.of(self._seen)

    def members(self) -> dict[str, Share]:
        names = dict.fromkeys(each.member for each in self._seen)
        return {name: Share.of(each for each in self._seen if each.member == name) for name in names}

    def odd(self) -> str | None:
        """The one upstream that others contradict, where it is clearly one."""
        ordered = sorted(self.blamed.items(), key=lambda item: -item[1])
        if not ordered or ordered[0][1] < 3 or (len(ordered) > 1 and ordered[1][1] * 3 > ordered[0][1]):
            return None
        return ordered[0][0]

    def without(self, member: str) -> None:
        """Forget what this upstream said."""
        self._seen = deque((each for each in self._seen if each.member != member), maxlen=WINDOW)
        self.blamed.pop(member, None)


class Consistency:
    """All environments', the least lately verified forgotten first. `fell` and `rose` say when to act."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._windows: OrderedDict[str, Window] = OrderedDict()

    def observe(self, environment: str, member: str, at: float, *, agreed: bool, blamed: Iterable[str] = ()) -> Share:
        """One more verification; the share as it is now. `blamed`: upstreams that a majority contradicted."""
        window = self._windows.setdefault(environment, Window())
        self._windows.move_to_end(environment)
        if len(self._windows) > _ENVIRONMENTS:
            self._windows.popitem(last=False)
        window.add(Seen(at, agreed, member), blamed)
        return window.share()

    def window(self, environment: str) -> Window:
        """What is known of it."""
        return self._windows.get(environment) or Window()

    def fell(self, environment: str) -> bool:
        """True where it is below the floor, with enough samples to be sure of it."""
        share = self.window(environment).share()
        enough = share.checked >= SAMPLES and share.checked - share.agreed >= DIVERGENT
        return enough and share.high < self._level.floor

    def rose(self, environment: str) -> bool:
        """True where so many in a row have agreed that an episode is over."""
        return self.window(environment).clean >= CLEAN

    def restart(self, environment: str) -> None:
        """An episode is over: what was is no evidence of what is."""
        self._windows.pop(environment, None)

    def describe(self, environment: str, state: State) -> dict[str, Any]:
        """As JSON values."""
        window = self.window(environment)
        return {
            **figures(window.share(), self._level, state),
            "odd": window.odd(),
            "upstreams": [
                {"url": name, **rounded(share), "contradicted": window.blamed.get(name, 0)}
                for name, share in window.members().items()
            ],
        }

    def environments(self) -> list[str]:
        """Those that something is known of."""
        return list(self._windows)


def figures(share: Share, level: Level, state: State) -> dict[str, Any]:
    """A share as operators see it."""
    if state != "degraded":
        state = "ok" if share.checked >= SAMPLES else "unknown"
    return {
        "state": state,
        **rounded(share),
        "target": level.target,
        "floor": level.floor,
        "meets_target": None if share.ratio is None else share.ratio >= level.target,
    }


def rounded(share: Share) -> dict[str, Any]:
    """Without digits that mean nothing."""
    return {
        "checked": share.checked,
        "agreed": share.agreed,
        "ratio": None if share.ratio is None else round(share.ratio, 6),
        "low": round(share.low, 6),
        "high": round(share.high, 6),
    }
