"""A backend in this process that is scripted answer by answer, and the verifier around it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samewise.core.answer import Answer, Event, Headers
from samewise.core.decide import Action
from samewise.core.entry import Entry
from samewise.core.fingerprint import CONTRACT, ENVIRONMENT_PATH, Environment
from samewise.pipeline.control import Control
from samewise.pipeline.fleet import Fleet
from samewise.pipeline.flight import Flights
from samewise.pipeline.profiles import Profiles
from samewise.pipeline.rollout import Rollout
from samewise.pipeline.verify.acts import Acts
from samewise.pipeline.verify.book import Book
from samewise.pipeline.verify.consistency import Level
from samewise.pipeline.verify.episodes import Episodes, OnFloor
from samewise.pipeline.verify.judge import Judge
from samewise.pipeline.verify.recompute import Recomputer
from samewise.pipeline.verify.room import Room
from samewise.pipeline.verify.verifier import Policy, Verifier
from samewise.ports import Call, Exchange, Member, Notice, Record, Repeat, Trace, UpstreamFailed
from samewise.store.memory import MemoryStore
from samewise.store.memory_journal import MemoryJournal, MemoryRecords
from tests.support.clock import ManualClock
from tests.support.entries import make_entry

ENVIRONMENT = "e" * 32
URL = "http://one/v1"
Says = Callable[[dict[str, Any], str], "dict[str, Any] | Reply"]


@dataclass
class Reply:
    """What an upstream does in place of a good answer."""

    status: int = 200
    body: bytes = b""
    environment: str = ENVIRONMENT
    headers: Headers = ()
    fails: str | None = None


class Answering:
    """An exchange that has all of its answer."""

    def __init__(self, reply: Reply, member: str, concurrency: int) -> None:
        self.status = reply.status
        self.headers = (("content-type", "application/json"), *reply.headers)
        self.environment: str | None = reply.environment
        self.member = member
        self.instance: str | None = member
        self.concurrency = concurrency
        self.lost = ""
        self._reply = reply

    @property
    def streaming(self) -> bool:
        return False

    async def read(self) -> bytes:
        if self._reply.fails is not None:
            raise UpstreamFailed(self._reply.fails, "scripted", sent=True)
        return self._reply.body

    async def bursts(self) -> AsyncIterator[Sequence[Event]]:
        raise NotImplementedError
        yield

    async def chunks(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def close(self) -> None: ...


class ScriptedEngine:
    """`says` gives the JSON of an answer (or a Reply) to a body asked of an upstream; `asked` are all generations."""

    def __init__(self, says: Says, *urls: str) -> None:
        self.says = says
        self.urls = list(urls or (URL,))
        self.environment = ENVIRONMENT
        self.drained: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.running = 0
        self._turn = itertools.count()

    async def open(self, call: Call) -> Exchange:
        left = [url for url in self.urls if url not in self.drained]
        member = call.member or left[next(self._turn) % len(left)]
        if call.path == ENVIRONMENT_PATH:
            return Answering(Reply(environment=self.environment), member, 1)
        assert isinstance(call.body, bytes)
        body = json.loads(call.body)
        self.asked.append((member, body))
        said = self.says(body, member)
        reply = said if isinstance(said, Reply) else Reply(body=json.dumps(said).encode())
        return Answering(reply, member, self.running + 1)

    def members(self) -> Sequence[Member]:
        known = Environment(id=self.environment, origin=CONTRACT, engine="mock")
        return [
            Member(url=url, healthy=True, draining=url in self.drained, environment=known, running=self.running)
            for url in self.urls
        ]

    async def refresh(self, url: str | None = None) -> None: ...

    # ports.Roster

    async def add(self, url: str) -> Member:
        self.drained.remove(url)
        return self.members()[0]

    def drain(self, url: str) -> bool:
        self.drained.append(url)
        return True

    def remove(self, url: str) -> bool:
        return False


class Watching:
    """An observer that keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def begin(self, headers: Mapping[str, str], name: str) -> Trace:
        raise NotImplementedError

    def finish(self, trace: Trace, record: Record) -> None: ...

    def repeats(self, record: Record) -> Repeat | None:
        return None

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    def gauge(self, name: str, change: int) -> None: ...

    def kinds(self, kind: str) -> list[Notice]:
        return [notice for notice in self.notices if notice.kind == kind]

    def verdicts(self) -> dict[str, int]:
        """Outcomes, flaky ones as themselves."""
        counted: dict[str, int] = {}
        for notice in self.kinds("verification"):
            outcome = notice.detail["outcome"]
            counted[outcome] = counted.get(outcome, 0) + 1
        return counted


@dataclass
class House:
    """Everything that a verification touches."""

    engine: ScriptedEngine
    clock: ManualClock
    store: MemoryStore
    control: Control
    observer: Watching
    judge: Judge
    book: Book
    episodes: Episodes
    verifier: Verifier
    told: list[Mapping[str, Any]] = field(default_factory=list)

    async def settled(self) -> None:
        """Return when nothing waits to be verified."""
        async with asyncio.timeout(20):
            while len(self.verifier):  # noqa: ASYNC110
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def verify(self, *entries: Entry) -> None:
        """Have them recomputed, as hits."""
        for entry in entries:
            self.verifier._offer("hit", entry, None)
        await self.settled()

    async def stored(self, key: str) -> Entry | None:
        found = await self.store.get(key)
        return None if found is None else found.entry


def house(
    says: Says,
    *urls: str,
    action: Action = "flag",
    on_floor: OnFloor = "alert",
    rate: float = 1.0,
    warm: float = 0.0,
    queue: int = 100_000,
    release: int = 3,
    agreements: int = 0,
    full: bool = True,
    concurrency: int = 1,
) -> House:
    """Put together as the program does; not started. Call it within an event loop."""
    clock, observer, journal = ManualClock(), Watching(), MemoryJournal()
    engine = ScriptedEngine(says, *urls)
    store = MemoryStore(1 << 30, clock=clock)
    control = Control(
        journal=journal,
        store=store,
        flights=Flights(1 << 20),
        profiles=Profiles({}),
        rollout=Rollout(engine.members, "auto"),
        fleet=Fleet(engine),
        observer=observer,
        clock=clock,
    )
    numbers, told = itertools.count(), []

    async def hook(evidence: Mapping[str, Any]) -> None:
        told.append(evidence)

    recomputer = Recomputer(engine, clock, salts=control.salt, fresh=lambda: f"fresh-{next(numbers)}", timeout=5.0)
    judge = Judge(recomputer, near_tie_nats=0.05)
    book = Book(MemoryRecords(), clock, keep=1000, full=full, ids=lambda: f"id-{next(numbers)}")
    level = Level(target=0.999, floor=0.99)
    common: dict[str, Any] = {"control": control, "clock": clock, "who": "test"}
    episodes = Episodes(
        level=level, on_floor=on_floor, engine=engine, book=book, observer=observer, hook=hook, **common
    )
    verifier = Verifier(
        policy=Policy(
            rate=rate,
            concurrency=concurrency,
            action=action,
            warm=warm,
            each=3600.0,
            queue=queue,
            release=release,
            agreements=agreements,
        ),
        judge=judge,
        room=Room(engine, recomputer, clock),
        acts=Acts(store=store, **common),
        book=book,
        episodes=episodes,
        withheld=control.withheld,
        store=store,
        observer=observer,
        clock=clock,
    )
    return House(engine, clock, store, control, observer, judge, book, episodes, verifier, told)


def chat(text: str, number: int = 1, **members: Any) -> dict[str, Any]:
    """A chat answer; what differs from call to call follows from `number`."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **members.pop("message", {})},
        "finish_reason": members.pop("finish_reason", "stop"),
        **members.pop("choice", {}),
    }
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000 + number,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        **members,
    }


def recorded(text: str, name: str = "a", **fields: Any) -> Entry:
    """An entry with a chat answer that says this."""
    answer = fields.pop("answer", chat(text))
    values: dict[str, Any] = {"environment": ENVIRONMENT, "instance": URL, **fields}
    return make_entry(name, answer=Answer(form="json", body=json.dumps(answer).encode()), **values)


def logprobs(*tokens: tuple[str, dict[str, float]]) -> dict[str, Any]:
    """The `logprobs` of a choice: each token with the candidates at its place."""
    content = [
        {
            "token": token,
            "logprob": known[token],
            "top_logprobs": [{"token": name, "logprob": nats} for name, nats in known.items()],
        }
        for token, known in tokens
    ]
    return {"logprobs": {"content": content}}
