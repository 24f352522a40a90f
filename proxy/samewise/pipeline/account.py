"""What becomes known of one request on its way, told once at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from samewise.core.answer import Usage
from samewise.core.reason import Reason
from samewise.ports import Clock, Content, Observer, Outcome, Record, Tier, Trace

_SUCCESS = 400
_PRECEDENCE: tuple[Outcome, ...] = ("error", "bypass", "refresh", "miss", "coalesced", "hit")


@dataclass(slots=True)
class Marks:
    """What the path of a request leaves behind: the door reads it for headers, the account for its record.

    Durations are seconds; `ttl` and `age` are those of the entry that answered. `answered`: the upstream's status.
    """

    outcome: Outcome = "bypass"
    forward: Literal["miss", "bypass", "request", "stale"] | None = None
    reason: Reason | None = None
    model: str = ""
    key: str | None = None
    environment: str | None = None
    snapshot: str | None = None
    stream: bool = False
    stored: bool = False
    tier: Tier | None = None
    age: float | None = None
    ttl: float | None = None
    verified: int | None = None
    seed: int | None = None
    receipt: str | None = None
    usage: Usage = field(default_factory=Usage)
    member: str | None = None
    answered: int | None = None
    lookup: float | None = None
    upstream_started: float | None = None
    upstream: float | None = None
    store_started: float | None = None
    store: float | None = None
    leader: Trace | None = None

    def gather(self, units: Sequence[Marks]) -> None:
        """Take over what became known of several units: the outcome of the one that cost most."""
        first = min(units, key=lambda unit: _PRECEDENCE.index(unit.outcome))
        self.outcome, self.forward = first.outcome, first.forward
        self.reason = next((unit.reason for unit in units if unit.reason is not None), None)
        self.environment = next((unit.environment for unit in units if unit.environment), self.environment)
        self.member = next((unit.member for unit in units if unit.member), None)
        self.answered = max((unit.answered for unit in units if unit.answered is not None), default=None)
        self.stored = any(unit.stored for unit in units)
        self.tier = first.tier
        self.age = max((unit.age for unit in units if unit.age is not None), default=None)
        self.ttl = min((unit.ttl for unit in units if unit.ttl is not None), default=None)
        self.verified = min((unit.verified for unit in units if unit.verified is not None), default=None)
        self.lookup = max((unit.lookup for unit in units if unit.lookup is not None), default=None)
        self.upstream_started = min((unit.upstream_started for unit in units if unit.upstream_started), default=None)
        self.upstream = max((unit.upstream for unit in units if unit.upstream is not None), default=None)


class Account:
    """One request's dossier; the observers get it as one frozen record when it is closed."""

    def __init__(self, *, observer: Observer, clock: Clock, trace: Trace, request_id: str, endpoint: str) -> None:
        self._observer = observer
        self._clock = clock
        self._started = clock.monotonic()
        self._closed = False
        self._first_byte: float | None = None
        self.trace = trace
        self.request_id = request_id
        self.endpoint = endpoint
        self.tenant = ""
        self.content: Content | None = None
        self.marks = Marks()
        observer.gauge("inflight", 1)

    def first_byte(self) -> None:
        """The first byte of the answer goes to the caller now."""
        if self._first_byte is None:
            self._first_byte = self._clock.monotonic() - self._started

    def close(self, status: int, *, cancelled: bool = False) -> None:
        """It is over; only the first call counts. `cancelled`: the caller went away before the end."""
        if self._closed:
            return
        self._closed = True
        self._observer.gauge("inflight", -1)
        self._observer.finish(self.trace, self.record(status, cancelled=cancelled))

    def record(self, status: int, *, cancelled: bool = False) -> Record:
        """What is known now."""
        marks = self.marks
        return Record(
            request_id=self.request_id,
            endpoint=self.endpoint,
            model=marks.model,
            tenant=self.tenant,
            outcome="error" if status >= _SUCCESS else marks.outcome,
            status=status,
            started=self._started,
            duration=self._clock.monotonic() - self._started,
            reason=marks.reason,
            tier=marks.tier,
            key=marks.key,
            environment=marks.environment,
            snapshot=marks.snapshot,
            stream=marks.stream,
            stored=marks.stored,
            cancelled=cancelled,
            lookup=marks.lookup,
            upstream_started=marks.upstream_started,
            upstream=marks.upstream,
            store_started=marks.store_started,
            store=marks.store,
            first_byte=self._first_byte,
            age=marks.age,
            usage=marks.usage,
            member=marks.member,
            leader=marks.leader,
            content=self.content,
        )
