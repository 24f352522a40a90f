"""What becomes known of one request on its way, told once at its end."""

from __future__ import annotations

from typing import Literal

from samewise.core.answer import Usage
from samewise.core.reason import Reason
from samewise.ports import Clock, Observer, Outcome, Record, Tier, Trace

_SUCCESS = 400


class Account:
    """One request's dossier: the door reads it for headers, the observers get it as one frozen record.

    Durations are seconds; `ttl` and `age` are those of the entry that answered.
    """

    def __init__(
        self, *, observer: Observer, clock: Clock, trace: Trace, request_id: str, endpoint: str, tenant: str
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._started = clock.monotonic()
        self._closed = False
        self._first_byte: float | None = None
        self.trace = trace
        self.request_id = request_id
        self.endpoint = endpoint
        self.tenant = tenant
        self.model = ""
        self.outcome: Outcome = "bypass"
        self.forward: Literal["miss", "bypass", "request", "stale"] | None = None
        self.reason: Reason | None = None
        self.key: str | None = None
        self.environment: str | None = None
        self.snapshot: str | None = None
        self.stream = False
        self.stored = False
        self.tier: Tier | None = None
        self.age: float | None = None
        self.ttl: float | None = None
        self.verified: int | None = None
        self.seed: int | None = None
        self.usage = Usage()
        self.member: str | None = None
        self.lookup: float | None = None
        self.upstream_started: float | None = None
        self.upstream: float | None = None
        self.leader: Trace | None = None
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
        self._observer.finish(
            self.trace,
            Record(
                request_id=self.request_id,
                endpoint=self.endpoint,
                model=self.model,
                tenant=self.tenant,
                outcome="error" if status >= _SUCCESS else self.outcome,
                status=status,
                started=self._started,
                duration=self._clock.monotonic() - self._started,
                reason=self.reason,
                tier=self.tier,
                key=self.key,
                environment=self.environment,
                snapshot=self.snapshot,
                stream=self.stream,
                stored=self.stored,
                cancelled=cancelled,
                lookup=self.lookup,
                upstream_started=self.upstream_started,
                upstream=self.upstream,
                first_byte=self._first_byte,
                age=self.age,
                usage=self.usage,
                member=self.member,
                leader=self.leader,
            ),
        )
