"""A job of the reference engine inside of the test's own process, and what comes of it."""

from __future__ import annotations

import threading

from samewise_backend.engine import Engine, Event, Failed, Job, Step, Ticket
from samewise_backend.sampler import Sampling


class Collected:
    """A submitted job and what came of it."""

    def __init__(self, engine: Engine, prompt: tuple[int, ...], *, count: int = 8, **values: object) -> None:
        self.events: list[Event] = []
        self.done = threading.Event()
        self._steps: list[tuple[int, threading.Event]] = []
        sampling = {name: values.pop(name) for name in list(values) if name in Sampling.__dataclass_fields__}
        job = Job(
            prompt=prompt,
            sampling=Sampling(**{"seed": 0, **sampling}),  # type: ignore[arg-type]
            max_tokens=count,
            deliver=self._take,
            **values,  # type: ignore[arg-type]
        )
        self.ticket: Ticket = engine.submit(job)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        for count, reached in self._steps:
            if len(self.events) >= count or isinstance(event, Failed):
                reached.set()
        if isinstance(event, Failed) or (isinstance(event, Step) and event.finish is not None):
            self.done.set()

    def after(self, count: int) -> None:
        """Wait for so many events."""
        reached = threading.Event()
        self._steps.append((count, reached))
        if len(self.events) < count:
            assert reached.wait(60)

    def tokens(self) -> list[int]:
        assert self.done.wait(60), "the job did not end"
        assert not any(isinstance(event, Failed) for event in self.events), self.events
        return [event.token for event in self.events if isinstance(event, Step)]
