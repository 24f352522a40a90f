"""Sampling profiles that change while requests run: immutable numbered versions, one active, one canary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import xxhash

from samewise.core import canonical
from samewise.core.plan import Snapshot
from samewise.pipeline import told
from samewise.ports import ControlEvent

SET, CANARY, PROMOTE, ROLLBACK = "profile-set", "profile-canary", "profile-promote", "profile-rollback"
KINDS = frozenset({SET, CANARY, PROMOTE, ROLLBACK})
DEFAULT = "default"
CONFIG = "config"
"""The author of versions that come from the settings."""

_BUCKETS = 10_000


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable version. `hash` is the SHA-256 over its canonical values; `at` in seconds since the epoch."""

    number: int
    values: dict[str, Any]
    hash: str
    at: float
    by: str
    reason: str


class Profile(msgspec.Struct, kw_only=True):
    """All versions of one profile. `previous` are the versions that were active before, oldest first."""

    name: str
    match: str
    versions: list[Version] = []
    active: int = 0
    previous: list[int] = []
    canary: int | None = None
    percent: float = 0.0

    def values(self, number: int) -> Version:
        """The version of that number (from 1)."""
        return self.versions[number - 1]


class UnknownProfile(LookupError):
    """No profile of that name."""


class NothingToDo(ValueError):
    """There is no canary to promote, or no earlier version to go back to."""


def content_hash(values: Mapping[str, Any]) -> str:
    """SHA-256 over the values, whatever their order and spelling."""
    return canonical.sha256(canonical.encode_sorted(canonical.normalise(dict(values))))


def bucket(tenant: str, model: str, prompt: bytes) -> int:
    """0 to 9999, evenly: on which side of a canary a request falls, for ever."""
    return xxhash.xxh64_intdigest(b"\0".join((tenant.encode(), model.encode(), prompt))) % _BUCKETS


class Profiles:
    """The fold of all profile events so far."""

    def __init__(self, configured: Mapping[str, str] | None = None) -> None:
        """`configured`: names and model globs of the settings, in the order in which they are tried."""
        self._configured = dict(configured or {DEFAULT: "*"})
        self._profiles: dict[str, Profile] = {}
        self.forget()

    def forget(self) -> None:
        """As before the first event."""
        self._profiles = {
            name: Profile(name=name, match=match, versions=[], previous=[]) for name, match in self._configured.items()
        }

    def apply(self, happened: ControlEvent) -> None:
        """Take in one event of the journal. Raises ValueError where it can't be understood: nothing changes by it."""
        match happened.kind:
            case "profile-set":
                if happened.by == CONFIG and self._repeats(happened):
                    return
                profile = self._with_version(happened)
                self._activate(profile, len(profile.versions))
                profile.canary = None
                return
            case "profile-canary":
                percent = told.number(happened, "percent")
                if not 0 < percent <= 100:
                    raise ValueError("percent should be above 0, up to 100")
                profile = self._with_version(happened)
                profile.canary, profile.percent = len(profile.versions), float(percent)
                return
            case _:
                pass
        if happened.subject not in self._profiles:
            raise ValueError("there is no such profile")
        profile = self._profiles[happened.subject]
        match happened.kind:
            case "profile-promote" if profile.canary is not None:
                self._activate(profile, profile.canary)
                profile.canary = None
            case "profile-rollback" if profile.canary is not None:
                profile.canary = None
            case "profile-rollback" if profile.previous:
                profile.active = profile.previous.pop()
            case _:
                pass

    def get(self, name: str) -> Profile:
        """All of one profile. Raises UnknownProfile."""
        try:
            return self._profiles[name]
        except KeyError:
            raise UnknownProfile(name) from None

    def names(self) -> Sequence[str]:
        """In the order in which they are tried."""
        return tuple(self._profiles)

    def configured(self, name: str) -> Version | None:
        """The last version that came from the settings."""
        versions = self._profiles[name].versions if name in self._profiles else []
        return next((version for version in reversed(versions) if version.by == CONFIG), None)

    def snapshot(self, tenant: str, model: str, prompt: bytes) -> Snapshot:
        """The version that a request with this model and prompt is admitted with."""
        profile = self._matching(model)
        if profile is None or not profile.versions:
            return Snapshot(profile=DEFAULT, version=0)
        number = profile.active
        if profile.canary is not None and (
            number == 0 or bucket(tenant, model, prompt) < profile.percent / 100 * _BUCKETS
        ):
            number = profile.canary
        return Snapshot(profile=profile.name, version=number, values=profile.values(number).values)

    def has_canary(self, model: str) -> bool:
        """True where the prompt decides the snapshot."""
        profile = self._matching(model)
        return profile is not None and profile.canary is not None

    def _matching(self, model: str) -> Profile | None:
        named = [name for name in self._profiles if name != DEFAULT]
        for name in (*named, DEFAULT):
            profile = self._profiles.get(name)
            if profile is not None and fnmatchcase(model, profile.match):
                return profile
        return None

    def _repeats(self, happened: ControlEvent) -> bool:
        """True where the settings say what they said last: proxies that start at the same time all tell of them."""
        last = self.configured(happened.subject)
        return last is not None and last.hash == content_hash(told.members(happened, "values"))

    def _with_version(self, happened: ControlEvent) -> Profile:
        """The profile that an event names, made by it where it is new, with the version that it brings at the end."""
        name, values = happened.subject, told.members(happened, "values")
        if not name or not name.isprintable():
            raise ValueError("the subject should be a name")
        profile = self._profiles.get(name) or Profile(
            name=name, match=told.text(happened, "match") or "*", versions=[], previous=[]
        )
        version = Version(
            number=len(profile.versions) + 1,
            values=values,
            hash=content_hash(values),
            at=happened.at,
            by=happened.by,
            reason=happened.reason,
        )
        profile.versions.append(version)
        self._profiles[name] = profile
        return profile

    @staticmethod
    def _activate(profile: Profile, number: int) -> None:
        if profile.active:
            profile.previous.append(profile.active)
        profile.active = number
