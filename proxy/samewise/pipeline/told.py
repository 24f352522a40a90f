"""What an event of the journal says, where it says it in the form that was agreed. Raises ValueError elsewhere.

Others write the journal too: older releases, newer ones, and whoever can reach the store.
"""

from __future__ import annotations

import re
from typing import Any

from samewise.ports import ControlEvent

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def text(happened: ControlEvent, name: str) -> str:
    """The value of this name, empty where there is none."""
    value = happened.values.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} should be text")
    return value


def texts(happened: ControlEvent, name: str) -> list[str]:
    """The list of this name, empty where there is none."""
    value = happened.values.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} should be a list of texts")
    return value


def members(happened: ControlEvent, name: str) -> dict[str, Any]:
    """The object of this name, empty where there is none."""
    value = happened.values.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} should be an object")
    return dict(value)


def number(happened: ControlEvent, name: str) -> float:
    """The number of this name."""
    value = happened.values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} should be a number")
    return value


def digest(happened: ControlEvent) -> str:
    """The subject, where it is the hex of a SHA-256; in lower case."""
    if not _DIGEST.fullmatch(happened.subject):
        raise ValueError("the subject should be the 64 hex digits of a SHA-256")
    return happened.subject.lower()
