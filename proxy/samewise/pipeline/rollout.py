"""Which environment is active for a model: the one whose entries are served and whose upstreams answer.

`auto`: the one that most healthy upstreams have; it changes only where another has more than half of them, or
nobody healthy has it any more. An operator's activation holds while somebody healthy has that environment and
most have it or the one that most had when it was activated: a third one ends it.
`manual`: what was activated, whoever has it; before that the first one that was seen.
`verified`: what was activated, which acceptance does for an environment that passed; before that none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from samewise.core.fingerprint import CONTRACT, Environment, from_manifest
from samewise.pipeline import told
from samewise.ports import ControlEvent, Member

ACTIVATE = "environment-activate"
TRIAL = "environment-trial"
KINDS = frozenset({ACTIVATE, TRIAL})
CLAIM = 300.0
"""Seconds for which a trial is its first proxy's; one that never ended may then be begun anew."""
Policy = Literal["auto", "manual", "verified"]
State = Literal["begun", "passed", "failed", "inconclusive"]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """An activation: `majority` is what most had then, `environment` what was known of it."""

    id: str
    majority: str = ""
    environment: Environment | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How far the acceptance of an environment for a model is; `at` in seconds since the epoch."""

    state: State
    by: str = ""
    at: float = 0.0
    summary: dict[str, Any] = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is there now: environments by id, and how many healthy upstreams have each."""

    known: dict[str, Environment]
    healthy: Counter[str]

    @property
    def majority(self) -> str:
        """What most healthy upstreams have; empty where none is healthy. Of equals: the first listed."""
        return self.healthy.most_common(1)[0][0] if self.healthy else ""


class Rollout:
    """Follows the upstreams and the operators. `members` tells what is there now, from memory."""

    def __init__(self, members: Callable[[], Sequence[Member]], policy: Policy) -> None:
        self._members = members
        self._policy = policy
        self._chosen: dict[str, Chosen] = {}
        self._active: dict[str, Environment | None] = {}
        self._sticky: dict[str, Environment] = {}
        self._trials: dict[tuple[str, str], Trial] = {}

    def apply(self, happened: ControlEvent) -> None:
        """Take in an activation (its `model` is empty where it holds for every model) or the news of a trial.

        Raises ValueError where it can't be understood: nothing changes by it.
        """
        model = told.text(happened, "model")
        if happened.kind == TRIAL:
            self._try(happened, model)
            return
        chosen = Chosen(id=happened.subject, majority=told.text(happened, "majority"), environment=_described(happened))
        if not model:
            self._chosen.clear()
        self._chosen[model] = chosen
        self.changed()

    def changed(self) -> None:
        """An upstream is not what it was."""
        self._active.clear()

    def models(self) -> list[str]:
        """Models that some upstream lists; the empty name where none lists any."""
        return sorted({model for member in self._members() for model in member.models}) or [""]

    def active(self, model: str) -> Environment | None:
        """The active environment, None where nothing is known of any upstream, or nothing has passed."""
        if model in self._active:
            return self._active[model]
        name = self._listed(model)
        if name not in self._active:
            self._active[name] = self._decide(name)
        return self._active[name]

    def chosen(self, model: str) -> Chosen | None:
        """The last activation for this model, or for all."""
        return self._chosen.get(model, self._chosen.get(""))

    def waiting(self, model: str) -> Environment | None:
        """The environment, other than the active one, that most healthy upstreams of the model have."""
        standing, active = self.standing(self._listed(model)), self.active(model)
        others = [identity for identity, _ in standing.healthy.most_common() if not active or identity != active.id]
        return standing.known[others[0]] if others else None

    def trial(self, identity: str, model: str) -> Trial | None:
        """What is known of the acceptance of this environment for this model."""
        return self._trials.get((identity, model))

    def standing(self, model: str) -> Standing:
        """What the upstreams of a model have now; those that drain don't count."""
        members = [member for member in self._members() if member.environment is not None and not member.draining]
        serving = [member for member in members if model in member.models] or members
        return Standing(
            known={member.environment.id: member.environment for member in serving if member.environment},
            healthy=Counter(member.environment.id for member in serving if member.healthy and member.environment),
        )

    def _listed(self, model: str) -> str:
        """The name under which a model is followed: names that no upstream lists are one."""
        return model if any(model in member.models for member in self._members()) else ""

    def _decide(self, model: str) -> Environment | None:
        standing, chosen, current = self.standing(model), self.chosen(model), self._sticky.get(model)
        if self._policy == "auto":
            active = _held(chosen, standing) or _by_majority(current, standing)
        elif chosen is not None:
            active = standing.known.get(chosen.id) or chosen.environment
            if active is None and current is not None and current.id == chosen.id:
                active = current
        elif self._policy == "manual":
            active = current or _by_majority(None, standing)
        else:
            active = None
        if active is not None:
            self._sticky[model] = active
        return active

    def _try(self, happened: ControlEvent, model: str) -> None:
        state = happened.values.get("state")
        if state not in ("begun", "passed", "failed", "inconclusive"):
            raise ValueError("the state should be one of a trial's")
        before = self._trials.get((happened.subject, model))
        if state == "begun" and before is not None and before.state == "begun" and happened.at - before.at < CLAIM:
            return
        summary = happened.values.get("summary")
        self._trials[happened.subject, model] = Trial(
            state=state, by=happened.by, at=happened.at, summary=summary if isinstance(summary, dict) else {}
        )


def _held(chosen: Chosen | None, standing: Standing) -> Environment | None:
    """What an operator activated, as long as it holds under `auto`."""
    if chosen is None or not standing.healthy[chosen.id]:
        return None
    return standing.known[chosen.id] if standing.majority in {chosen.id, chosen.majority} else None


def _by_majority(current: Environment | None, standing: Standing) -> Environment | None:
    healthy, known = standing.healthy, standing.known
    if not healthy:
        return current or next(iter(known.values()), None)
    best, count = healthy.most_common(1)[0]
    if current is not None and healthy[current.id] and count * 2 <= healthy.total():
        return known[current.id]
    return known[best]


def _described(happened: ControlEvent) -> Environment | None:
    """None where the event doesn't say what the environment is."""
    manifest = told.members(happened, "manifest")
    environment = from_manifest(manifest, told.text(happened, "origin") or CONTRACT) if manifest else None
    if environment is not None and environment.id != happened.subject:
        raise ValueError("the manifest should be that of the subject")
    return environment


def activation(environment: Environment, model: str, standing: Standing) -> dict[str, Any]:
    """What goes into the journal beside the id: enough to make keys of it while no upstream has it."""
    return {
        "model": model,
        "majority": standing.majority,
        "origin": environment.origin,
        "manifest": environment.manifest,
    }
