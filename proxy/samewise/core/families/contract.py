"""What a family must tell, so that the rest of the house needs no word of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from samewise.core.answer import Answer, Event, Usage
from samewise.core.reason import Reason


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of an answer, as comparison sees it. `logprobs` are nats of the chosen tokens, `candidates`
    the alternatives at each position (token text or id -> nats), both None where the upstream gave none."""

    index: int
    text: str
    tokens: tuple[str, ...] | None = None
    """The chosen tokens as text, one for each of `logprobs`; None where the upstream gave none."""
    token_ids: tuple[int, ...] | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    logprobs: tuple[float, ...] | None = None
    candidates: tuple[dict[str, float], ...] | None = None
    vector: tuple[float, ...] | None = None


class Family(Protocol):
    """One API. All methods are pure; an answer given to them has status 200."""

    name: str
    path: str
    delivery: frozenset[str]
    """Members of the body that change only how the answer travels."""
    sampled: bool
    """True where sampling parameters decide the answer (not for embeddings and scores)."""
    seeded: bool
    """True where the API has a `seed`, so that sampling above temperature 0 can be reproducible."""
    together: bool

    def refusal(self, body: Mapping[str, Any]) -> Reason | None:
        """Why this request can never be cached: remote media, server-side state."""

    def split(self, body: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """The units of a body, in order; the body itself where it is one question."""

    def batch(self, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One upstream body for several units (the inverse of split); only where `together`."""

    def unbatch(self, answer: Answer, requests: Sequence[dict[str, Any]]) -> Sequence[Answer]:
        """The answer to a batch, as one answer a unit; raises ValueError where they don't match."""

    def join(self, answers: Sequence[Answer], requests: Sequence[dict[str, Any]]) -> Answer:
        """One JSON answer for several units, in order."""

    def shift(self, event: Event, unit: int, request: Mapping[str, Any], like: Event | None = None) -> Event:
        """The event of a unit's stream as it appears in the stream of a request with several.

        `like`: the first event of that stream, whose id and time all of its events share.
        """

    def closing(
        self, answers: Sequence[Answer], requests: Sequence[Mapping[str, Any]], include_usage: bool
    ) -> tuple[Event, ...]:
        """How the stream of a request with several units ends: their usage together where it was asked for, the end.

        Before it, each unit's events are sent through `visible` and `shift`, without those that `ends`.
        """

    def noise(self, event: Event) -> bool:
        """True for a keep-alive, which is relayed (where `visible`) but never recorded."""

    def upstream_stream(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body that asks for a stream with everything that a record needs (usage, for one)."""

    def failure(self, answer: Answer, request: Mapping[str, Any]) -> Reason | None:
        """Why this answer is not whole: an error in it, a choice without an end, a stream without its end."""

    def ends(self, event: Event) -> bool:
        """True for the event after which nothing more is expected."""

    def cut(self, message: str) -> Event:
        """What tells a client that the stream under way ends here and is not whole, as its own library reads it."""

    def to_events(self, answer: Answer) -> tuple[Event, ...]:
        """A recorded JSON body as the events that a stream would have had, its end included."""

    def to_body(self, answer: Answer) -> bytes:
        """Recorded events as the JSON body that the upstream would have sent."""

    def visible(self, events: Sequence[Event], include_usage: bool) -> Sequence[Event]:
        """The events as one caller may see them: without usage that nobody asked for. The same where nothing goes."""

    def usage(self, answer: Answer) -> Usage: ...

    def outputs(self, answer: Answer) -> Sequence[Output]:
        """What comparison looks at: text, tokens, tool calls, finish reasons; no ids, times, fingerprints."""
