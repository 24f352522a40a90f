"""What an import brought along, so that its entries are found where no upstream is known."""

from __future__ import annotations

import msgspec

from samewise.core.fingerprint import Environment
from samewise.core.transfer import EpochScope, Manifest
from samewise.ports import ControlEvent

KIND = "import"


def event(manifest: Manifest, *, by: str, at: float) -> ControlEvent:
    """What goes into the journal: environments by model, and the epochs that are part of the keys."""
    values = {
        "environments": msgspec.to_builtins(manifest.environments),
        "epochs": [list(each) for each in manifest.epochs],
    }
    return ControlEvent(kind=KIND, subject=manifest.version, values=values, by=by, reason="import", at=at)


class Adopted:
    """The fold of all imports: the environment of each model, newest first."""

    def __init__(self) -> None:
        self._environments: dict[str, Environment] = {}

    def apply(self, happened: ControlEvent) -> None:
        """Take in one import; raises ValueError where it can't be understood."""
        self._environments |= msgspec.convert(happened.values.get("environments", {}), dict[str, Environment])

    def environment(self, model: str) -> Environment | None:
        """What the entries of this model were made with; only for when nothing is known of any upstream."""
        return self._environments.get(model, self._environments.get(""))

    def all(self) -> dict[str, Environment]:
        """By model."""
        return dict(self._environments)


def epochs(happened: ControlEvent) -> list[tuple[EpochScope, str, int]]:
    """Scope, value and count of each epoch that came along. Raises ValueError where they can't be understood."""
    return msgspec.convert(happened.values.get("epochs", []), list[tuple[EpochScope, str, int]])
