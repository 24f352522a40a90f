"""Makes environments active where the policy asks for more than a majority: the first one under `manual`, those
that passed the acceptance under `verified`. What it does goes into the journal, so that every proxy does the same
and a restart forgets nothing; one proxy tries an environment while the others wait for its news.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from samewise.core.acceptance import Report
from samewise.core.fingerprint import Environment
from samewise.pipeline import rollout
from samewise.pipeline.control import Control
from samewise.pipeline.rollout import CLAIM, Policy, State, Trial
from samewise.ports import Clock, ControlEvent, StoreUnavailable

_log = logging.getLogger("samewise.rollout")

AGAIN = 30.0
"""Seconds until an acceptance that came to no end is tried again."""
LOOK = 1.0
"""Seconds between two looks at what there is to do, at most."""

Try = Callable[[Environment, str], Awaitable[Report]]
"""Runs the acceptance of an environment for a model. Any exception: it came to no end."""


class Promoter:
    """Idle under `auto`. `who` names this proxy in the journal."""

    def __init__(self, *, control: Control, clock: Clock, policy: Policy, attempt: Try, who: str) -> None:
        self._control = control
        self._clock = clock
        self._policy = policy
        self._attempt = attempt
        self._who = who
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Act from now on."""
        if self._policy != "auto":
            self._task = asyncio.create_task(self._run(), name="promote environments")

    async def close(self) -> None:
        """Stop; a trial that runs is given up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def step(self) -> None:
        """Do what there is to do now. Raises StoreUnavailable where the journal can't take it."""
        for model in self._control.rollout.models() if self._control.ready else ():
            if self._policy == "manual":
                await self._adopt(model)
            elif self._policy == "verified":
                await self._verify(model)

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except StoreUnavailable:
                pass
            except Exception:
                _log.exception("following the environments failed")
            await asyncio.sleep(LOOK)

    async def _adopt(self, model: str) -> None:
        followed = self._control.rollout
        environment = followed.active(model)
        if followed.chosen(model) is None and environment is not None:
            await self._activate(environment, model, "the first one")

    async def _verify(self, model: str) -> None:
        followed = self._control.rollout
        standing = followed.standing(model)
        environment = standing.known.get(standing.majority)
        chosen = followed.chosen(model)
        if environment is None or (chosen is not None and chosen.id == environment.id):
            return
        if chosen is not None and chosen.majority == environment.id and standing.healthy[chosen.id]:
            return  # an operator decided otherwise, knowing this one
        trial = followed.trial(environment.id, model)
        if trial is not None and trial.state == "passed":
            await self._activate(environment, model, "it passed the acceptance before")
        elif self._may_try(trial):
            await self._try(environment, model)

    def _may_try(self, trial: Trial | None) -> bool:
        if trial is None:
            return True
        passed = self._clock.now() - trial.at
        match trial.state:
            case "begun":
                return passed > CLAIM
            case "inconclusive":
                return passed > AGAIN
            case _:
                return False

    async def _try(self, environment: Environment, model: str) -> None:
        await self._tell(environment, model, "begun", {})
        trial = self._control.rollout.trial(environment.id, model)
        if trial is None or trial.by != self._who:
            return
        try:
            report = await self._attempt(environment, model)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreUnavailable):
                await self._tell(environment, model, "inconclusive", {"why": "the proxy that tried it stopped"})
            raise
        except Exception as failure:
            await self._tell(environment, model, "inconclusive", {"why": str(failure) or type(failure).__name__})
            return
        others = {row.environment for row in report.rows} - {environment.id}
        if report.answers == 0 or others or (report.failures and not report.disagreed):
            why = "; ".join(report.errors) or "it changed while it was tried"
            await self._tell(environment, model, "inconclusive", {**report.summary(), "why": why})
            return
        await self._tell(environment, model, "passed" if report.agreed else "failed", report.summary())
        if report.agreed:
            await self._activate(environment, model, "it passed the acceptance")

    async def _tell(self, environment: Environment, model: str, state: State, summary: dict[str, Any]) -> None:
        values = {"model": model, "state": state, "summary": summary}
        await self._record(rollout.TRIAL, environment, values, "acceptance")

    async def _activate(self, environment: Environment, model: str, reason: str) -> None:
        values = rollout.activation(environment, model, self._control.rollout.standing(model))
        await self._record(rollout.ACTIVATE, environment, values, reason)

    async def _record(self, kind: str, environment: Environment, values: dict[str, Any], reason: str) -> None:
        await self._control.record(
            ControlEvent(
                kind=kind,
                subject=environment.id,
                values=values,
                by=self._who,
                reason=reason,
                at=self._clock.now(),
            )
        )
