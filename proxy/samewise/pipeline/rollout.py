"""Which environment is active for a model: the one whose entries are served and whose upstreams answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from samewise.core.fingerprint import Environment
from samewise.ports import ControlEvent, Member

ACTIVATE = "environment-activate"
Policy = Literal["auto", "manual", "verified"]


class Rollout:
    """Follows the upstreams and the operators. `members` tells what is there now, from memory."""

    def __init__(self, members: Callable[[], Sequence[Member]], policy: Policy) -> None:
        self._members = members
        self._policy = policy
        self._chosen: dict[str, str] = {}
        self._active: dict[str, Environment | None] = {}
        self._sticky: dict[str, Environment] = {}

    def apply(self, happened: ControlEvent) -> None:
        """Take in an activation; its `model` is empty where it holds for every model."""
        model = str(happened.values.get("model", ""))
        if not model:
            self._chosen.clear()
        self._chosen[model] = happened.subject
        self.changed()

    def changed(self) -> None:
        """An upstream is not what it was."""
        self._active.clear()

    def active(self, model: str) -> Environment | None:
        """The active environment, None where nothing is known of any upstream."""
        if model not in self._active:
            self._active[model] = self._decide(model)
        return self._active[model]

    def _decide(self, model: str) -> Environment | None:
        members = [member for member in self._members() if member.environment is not None and not member.draining]
        serving = [member for member in members if model in member.models] or members
        known = {member.environment.id: member.environment for member in serving if member.environment}
        healthy = Counter(member.environment.id for member in serving if member.healthy and member.environment)
        current = self._sticky.get(model)
        chosen = self._chosen.get(model, self._chosen.get(""))
        if self._policy == "auto":
            active = self._by_majority(current, healthy, known)
        elif chosen is not None:
            active = known.get(chosen) or (current if current and current.id == chosen else None)
        else:
            active = current or self._by_majority(None, healthy, known)
        if active is not None:
            self._sticky[model] = active
        return active

    @staticmethod
    def _by_majority(
        current: Environment | None, healthy: Counter[str], known: dict[str, Environment]
    ) -> Environment | None:
        if not healthy:
            return current or next(iter(known.values()), None)
        best, count = healthy.most_common(1)[0]
        if current is not None and healthy[current.id] and count * 2 <= healthy.total():
            return known[current.id]
        return known[best]
