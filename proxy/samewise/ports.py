"""What the pipeline needs of the world, as protocols; rooms above and beside meet here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from samewise.core.answer import Event, Headers, Usage
from samewise.core.entry import Entry
from samewise.core.families.contract import Output
from samewise.core.fingerprint import Environment

# --- time ---------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time, so that rules can be tested without waiting."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""


# --- stores -------------------------------------------------------------------------------------------


class StoreUnavailable(Exception):
    """The store can't be asked now. `kind` is a bounded word: timeout, refused, readonly, oom, circuit-open, ..."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message or kind)
        self.kind = kind


Tier = Literal["memory", "store"]


class Found(msgspec.Struct, frozen=True):
    """An entry, and which tier had it."""

    entry: Entry
    tier: Tier


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is: `available` is False while its circuit is open or its server is away."""

    name: str
    available: bool
    detail: str = ""
    entries: int | None = None
    bytes: int | None = None


class Store(Protocol):
    """Entries by key. Every call is bounded in time; a failure is StoreUnavailable, never a wrong entry.

    `fence` numbers are those of control events (`Journal`): a `put` whose `entry.began` is lower than
    the fence that the key was discarded with is refused, so that an old fill never lands after it.
    """

    async def get(self, key: str) -> Found | None:
        """The entry under exactly this key, fresh or not yet reclaimed; None where there is none."""

    async def put(self, entry: Entry) -> bool:
        """Keep the entry for `entry.ttl` seconds from `entry.created`. False where a fence or a limit refused it."""

    async def discard(self, key: str, fence: int) -> bool:
        """Forget the entry, in every tier, and refuse what began before `fence`. True where there was one."""

    async def reclaim(self, entries: Sequence[Entry]) -> int:
        """Free what these entries take, which nobody may be served any more; how many were there.

        No fence is raised. A younger entry of the same key may go with them, which costs one miss.
        """

    async def revise(self, key: str, change: Callable[[Entry], Entry | None]) -> bool:
        """Put what `change` makes of the stored entry in its place, in one step; None removes it, the entry
        itself leaves it as it is. True where something changed; False too where there is none, or where what
        is stored kept changing.

        `change` is pure and quick: it may be called several times, and in another thread.
        """

    def scan(self) -> AsyncIterator[Entry]:
        """Every entry, in no order, without blocking others; for export, counting and reclaiming."""

    def status(self) -> Sequence[StoreStatus]:
        """One row a tier, from memory: asks nobody."""

    async def flush(self) -> None:
        """Return when all that was put is as durable as it gets."""

    async def close(self) -> None:
        """Flush and let go of files, threads and connections."""


UNREADABLE = "unreadable"
"""The kind of an event of which the journal has no more than its number."""


class ControlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an operator (or the proxy) changed. `number` counts from 1 and never repeats."""

    kind: str
    subject: str
    values: dict[str, Any] = {}
    by: str = ""
    reason: str = ""
    at: float = 0.0
    number: int = 0


class Journal(Protocol):
    """The control events of all proxies on one store, in one order; durable, append-only."""

    async def append(self, event: ControlEvent) -> ControlEvent:
        """Give the event its number and make it durable. Raises StoreUnavailable."""

    async def since(self, number: int) -> Sequence[ControlEvent]:
        """All events with a higher number, in order. Raises StoreUnavailable."""

    def changes(self) -> AsyncIterator[None]:
        """Yields when there may be new events: at once where the store can tell, else within half a second."""

    async def close(self) -> None: ...


class Records(Protocol):
    """Bounded, durable lists of small records by kind (divergences, receipts, ...), newest first."""

    async def add(self, kind: str, identity: str, value: bytes, *, keep: int) -> None:
        """Keep it; the oldest beyond `keep` go."""

    async def get(self, kind: str, identity: str) -> bytes | None: ...

    async def latest(self, kind: str, limit: int) -> Sequence[tuple[str, bytes]]: ...


Turn = Literal["mine", "landed", "free"]


class Leases(Protocol):
    """Singleflight over all processes on one store: one of them asks the upstream, the others wait. Never raises.

    A lease is named by a key and by how often what it stands for was invalidated (`since`): what comes
    after an invalidation waits for nobody who began before it.
    """

    async def turn(self, key: str, since: int) -> Turn:
        """Waits while another process asks; one that died is replaced within a second.

        `mine`: ask, then `release`. `landed`: another stored the answer, look. `free`: ask; no lease can be
        had, or what the other got was not to be kept.
        """

    async def release(self, key: str, since: int, *, stored: bool) -> None:
        """What was `mine` is over. Where it was `stored`, the others are told once they can see it."""

    async def close(self) -> None: ...


# --- upstreams ----------------------------------------------------------------------------------------


class UpstreamFailed(Exception):
    """No usable answer. `kind`: unreachable, timeout, cut, protocol, none-eligible. `sent`: it may have run."""

    def __init__(self, kind: str, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a backend. `path` starts with a slash and is relative to the API root (`/v1` included).

    `environment`: only a member of this environment may answer (None: any). `route` makes what affinity
    looks at (`core.route.prompt_prefix`), when it is looked at. `headers` are the client's end-to-end fields.
    `hedge`: another member may be asked as well where the first is slow to begin, or dies before it does.
    `lost`: the member that died over it already; it is not asked again, and one other is.
    """

    method: str
    path: str
    body: bytes | AsyncIterator[bytes] = b""
    headers: Headers = ()
    model: str | None = None
    environment: str | None = None
    route: Callable[[], bytes] | None = None
    member: str | None = None
    hedge: bool = False
    lost: str = ""
    purpose: Literal["user", "verify", "probe"] = "user"


class Exchange(Protocol):
    """An answer that has begun. Exactly one of `read`, `bursts` and `chunks` is used; `close` always."""

    status: int
    headers: Headers
    """End-to-end headers, names in lower case, content decoded."""
    environment: str | None
    """The id that the answer's own header names, else that of the member; empty while nobody knows what
    the member is (never seen, or restarted and not looked at yet): it equals no id."""
    member: str
    """The upstream's base URL."""
    instance: str | None
    concurrency: int
    """Requests of ours that ran on the member when this one began, itself included."""
    lost: str
    """The member that died over the call before this one was asked; empty where none did."""

    @property
    def streaming(self) -> bool:
        """True where the content type is `text/event-stream`."""

    async def read(self) -> bytes:
        """The whole body. Raises UpstreamFailed where it was cut or fell silent."""

    def bursts(self) -> AsyncIterator[Sequence[Event]]:
        """The data events as they come, those that came together together, never none.

        Ends where the connection ends. Raises UpstreamFailed when cut, after all that came before.
        """

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, for what passes through."""

    async def close(self) -> None:
        """Give the connection back, or end it where the answer is not over."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream as it was last seen."""

    url: str
    healthy: bool
    draining: bool = False
    environment: Environment | None = None
    models: tuple[str, ...] = ()
    running: int = 0
    error: str = ""
    seen: float = 0.0


class Warmth(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix of a prompt, in blocks, and where it is warm.

    `blocks`: whole ones, of `block_tokens` each (`assumed` where no backend says its size). `digest`: 16 hex
    digits that only prompts with the same blocks have. `common`: leading blocks that many prompts begin with.
    `warm`: leading blocks that each upstream has seen lately, by URL; None where routing keeps no record.
    """

    blocks: int
    block_tokens: int
    assumed: bool
    digest: str
    common: int = 0
    warm: dict[str, int] | None = None


class Prefixes(Protocol):
    """Knows what of a prompt the upstreams have seen."""

    def warmth(self, call: Call) -> Warmth | None:
        """From memory: asks nobody, notes nothing. None for a call without a `route`."""


class Engine(Protocol):
    """The backends behind the proxy, as one."""

    async def open(self, call: Call) -> Exchange:
        """Send and wait for the head of the answer. Raises UpstreamFailed."""

    def members(self) -> Sequence[Member]:
        """All upstreams, from memory: asks nobody."""

    async def refresh(self, url: str | None = None) -> None:
        """Look again now at what the upstream (or all) is."""


class Roster(Protocol):
    """Who the upstreams are, as operators change it. URLs are base URLs as an OpenAI client takes them."""

    async def add(self, url: str) -> Member:
        """One more, or an old one that drains no more. Raises ValueError where it isn't such a URL."""

    def drain(self, url: str) -> bool:
        """Send it nothing new; what runs on it goes on. False where there is no such upstream."""

    def remove(self, url: str) -> bool:
        """Forget it when what runs on it has ended. False where there is no such upstream."""


# --- observers ----------------------------------------------------------------------------------------

Outcome = Literal["hit", "miss", "coalesced", "bypass", "refresh", "error"]
RECORDED: frozenset[Outcome] = frozenset({"hit", "coalesced"})
"""Outcomes of requests for which no backend did anything: what their usage tells happened for another one."""


class Trace(Protocol):
    """The trace that a request belongs to; opaque but for what must travel on."""

    @property
    def traceparent(self) -> str | None:
        """W3C trace context for the upstream; None where nothing is traced."""

    @property
    def trace_id(self) -> str | None:
        """32 hex digits."""


class Content(msgspec.Struct, frozen=True):
    """What was asked (the parsed body) and answered. `outputs` is called once, where it is told."""

    asked: Mapping[str, Any]
    outputs: Callable[[], Sequence[Output]]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request, told once, after its last byte. Times are monotonic seconds; durations are seconds.

    `content` is there only where the settings ask for it.
    """

    request_id: str
    endpoint: str
    model: str
    tenant: str
    outcome: Outcome
    status: int
    started: float
    duration: float
    reason: str | None = None
    tier: Tier | None = None
    key: str | None = None
    environment: str | None = None
    snapshot: str | None = None
    stream: bool = False
    stored: bool = False
    cancelled: bool = False
    lookup: float | None = None
    upstream_started: float | None = None
    upstream: float | None = None
    store_started: float | None = None
    store: float | None = None
    first_byte: float | None = None
    age: float | None = None
    usage: Usage = Usage()
    member: str | None = None
    leader: Trace | None = None
    content: Content | None = None

    @property
    def prefix_cached(self) -> int | None:
        """Prompt tokens that the backend took from its prefix cache; None where the answer is a recorded one."""
        return self.usage.cached_tokens if self.outcome not in RECORDED else None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not a request: a verification, an invalidation, a store error, an environment change.

    `kind` is a bounded word; `attributes` go to counters, `detail` to the log and to events alone. `trace` is
    that of the request that it belongs to; with `started` (monotonic) and `duration` in seconds it becomes a span
    of a trace of its own, linked to that one.
    """

    kind: str
    attributes: dict[str, str] = {}
    detail: dict[str, Any] = {}
    value: float = 1
    trace: Trace | None = None
    started: float | None = None
    duration: float | None = None


class Repeat(Protocol):
    """Counts a request like one that was told of before."""

    def __call__(self, request_id: str, started: float, duration: float, age: float, lookup: float) -> None: ...


class Observer(Protocol):
    """Is told what happened; never changes an outcome, never raises, never waits."""

    def begin(self, headers: Mapping[str, str], name: str) -> Trace:
        """A request arrived. A malformed `traceparent` is ignored."""

    def finish(self, trace: Trace, record: Record) -> None:
        """It is over, whichever way."""

    def repeats(self, record: Record) -> Repeat | None:
        """For hits that differ from `record` in id, times and age alone; None where each must be told in full."""

    def notice(self, notice: Notice) -> None: ...

    def gauge(self, name: str, change: int) -> None:
        """Something like requests in flight went up or down."""
