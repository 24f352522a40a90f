"""Whose keys open the data port now: those of the settings, without those that an operator revoked.

Keys come from the settings alone, which can be read again while the proxy runs. The journal can only take
keys away: who can write to the store never lets himself in by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from samewise.core.tenants import Key
from samewise.pipeline import told
from samewise.ports import ControlEvent

REVOKE = "key-revoke"


class Keyring:
    """The keys in force. A revoked one stays out, whatever the settings say later."""

    def __init__(self) -> None:
        self._configured: tuple[Key, ...] = ()
        self._revoked: set[str] = set()
        self.keys: tuple[Key, ...] = ()
        """What a request may show."""
        self.guarded = False
        """True where a request needs a key; so it stays when the last one is revoked."""

    @property
    def configured(self) -> tuple[Key, ...]:
        """What the settings say."""
        return self._configured

    def revoked(self, key: Key) -> bool:
        """True where an operator took it away."""
        return key.sha256.lower() in self._revoked

    def knows(self, sha256: str) -> bool:
        """True where the settings name this key, or an operator took it away; lower case."""
        return sha256 in self._revoked or any(key.sha256.lower() == sha256 for key in self._configured)

    def configure(self, keys: Sequence[Key], *, guarded: bool = False) -> None:
        """The settings name these keys from now on. `guarded`: a request needs one even where there are none."""
        self._configured = tuple(keys)
        self.guarded = guarded or bool(self._configured)
        self._fold()

    def apply(self, happened: ControlEvent) -> None:
        """Take in one event of the journal, whose subject is the key's SHA-256. Raises ValueError where it is none."""
        self._revoked.add(told.digest(happened))
        self._fold()

    def _fold(self) -> None:
        self.keys = tuple(key for key in self._configured if not self.revoked(key))
