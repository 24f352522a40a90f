"""Hits that are served again: below the parser for the same bytes and for plain ones, before the plan for the rest.

What holds, and is tested against the long way:
1. A request is answered here only when it is, byte for byte, one that the long way answered with a hit, or has
   the same path, body and every header field that can matter (`question.MATTERS`). Below the parser it is
   answered only on a connection whose parser is clean (`Framing`), and of other bytes only where they are plain
   (`question.of_bytes`).
2. Everything that was true then is true now: the generation (epochs, profiles, environments, members, keys) is
   the same, and the memory tier has the very same entry, fresh. Where there is no memory tier the store is asked
   each time, and must have an equal entry. Otherwise the long way decides anew.
3. The response differs from the long way's in `x-request-id`, `Age`, the `ttl` of `Cache-Status` and `Date`
   alone, and each of these is what the long way would say now.
4. It is counted as the long way counts it, and the verifier hears of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from email.utils import formatdate
from typing import TypeVar

from samewise.core.entry import Entry
from samewise.core.plan import Plan
from samewise.http import question as questions
from samewise.http.question import Question
from samewise.ports import Clock, Found, Repeat, StoreUnavailable, Tier, Trace

_REMEMBERED = 65_536
_T = TypeVar("_T")

Peek = Callable[[str, float], Entry | None]
"""The entry of the memory tier that is fresh at a time."""
Look = Callable[[str], Awaitable[Found | None]]
"""The entry of a store. Raises StoreUnavailable."""


class Hot:
    """One hit, ready to be sent again. `head` has the fields that stay, `payload` the framed body."""

    __slots__ = ("_before", "_head", "_payload", "_second", "entry", "generation", "plan", "repeat", "size")

    def __init__(
        self, *, head: bytes, payload: bytes, entry: Entry, plan: Plan, generation: int, repeat: Repeat
    ) -> None:
        self._head = head
        self._payload = payload
        self._second = -1
        self._before = b""
        self.entry = entry
        self.plan = plan
        self.generation = generation
        self.repeat = repeat
        self.size = len(head) + len(payload)

    def response(self, request_id: str, now: float) -> bytes:
        """All bytes of the response. What tells the time is made once a second."""
        second = int(now)
        if second != self._second:
            age = self.entry.age(now)
            left = int((self.entry.ttl - age) // 1)
            self._second = second
            self._before = self._head + (
                f"Cache-Status: samewise; hit; ttl={left}\r\nAge: {int(age)}\r\n"
                f"Date: {formatdate(second, usegmt=True)}\r\nx-request-id: "
            ).encode("latin-1")
        return b"".join((self._before, request_id.encode("latin-1"), b"\r\n\r\n", self._payload))


class Memo:
    """Hits by what asked for them, within `limit` bytes of questions and answers; the least used goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hot: OrderedDict[Hashable, tuple[Hot, int]] = OrderedDict()
        self.bytes = 0

    def get(self, question: Hashable) -> Hot | None:
        found = self._hot.get(question)
        if found is None:
            return None
        self._hot.move_to_end(question)
        return found[0]

    def keep(self, question: Hashable, hot: Hot, size: int) -> None:
        self.drop(question)
        cost = size + hot.size
        self._hot[question] = (hot, cost)
        self.bytes += cost
        while self.bytes > self._limit:
            _, (_, freed) = self._hot.popitem(last=False)
            self.bytes -= freed

    def drop(self, question: Hashable) -> None:
        found = self._hot.pop(question, None)
        if found is not None:
            self.bytes -= found[1]


class HotAnswers:
    """Remembers hits by the bytes of their request, and by their body; within `limit` bytes each.

    `peek` answers from the memory tier; without one, `look` asks the store, and only bodies are remembered.
    `enabled` is False while the process drains: then the long way says goodbye.
    """

    def __init__(
        self,
        *,
        peek: Peek | None,
        look: Look | None = None,
        generation: Callable[[], int],
        clock: Clock,
        request_ids: Callable[[], str],
        on_hit: Callable[[Entry, Plan, Trace | None], None] | None,
        limit: int,
    ) -> None:
        self._peek = peek
        self._look = look
        self._generation = generation
        self._clock = clock
        self._request_ids = request_ids
        self._on_hit = on_hit
        self._requests = Memo(limit)
        self._bodies = Memo(limit)
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._heads: OrderedDict[Question, None] = OrderedDict()
        self.enabled = True

    @property
    def tier(self) -> Tier:
        """Whose hits are remembered."""
        return "store" if self._peek is None else "memory"

    @property
    def generation(self) -> int:
        """What a hit that is decided now must say."""
        return self._generation()

    def by_request(self, data: bytes) -> bytes | None:
        """The response to a request that is these bytes; None where the long way must answer."""
        hot = self._requests.get(data)
        if hot is None:
            return None
        response = self._answer(hot)
        if response is None:
            self._requests.drop(data)
        return response

    def by_fields(self, data: bytes) -> bytes | None:
        """The response to a plain request that is these bytes, asked before under other fields that don't matter."""
        asked = questions.of_bytes(data) if self._peek is not None else None
        found = None if asked is None else self.by_body(asked)
        if found is None:
            return None
        hot, response = found
        self.remember_request(b"", data, hot)
        return response

    def by_body(self, question: Question) -> tuple[Hot, bytes] | None:
        """The hit and the response to a request with this question."""
        hot = self._bodies.get(question) if self._peek is not None else None
        if hot is None:
            return None
        response = self._answer(hot)
        if response is None:
            self._bodies.drop(question)
            return None
        return hot, response

    async def by_store(self, question: Question) -> bytes | None:
        """The response to a request with this question, where there is no memory tier and the store has the hit."""
        hot = self._bodies.get(question) if self._look is not None else None
        if hot is None or self._look is None or not self._holds(hot):
            return None
        began = self._clock.monotonic()
        try:
            found = await self._look(hot.entry.key)
        except StoreUnavailable:
            return None
        now = self._clock.now()
        if found is None or found.entry != hot.entry or not found.entry.fresh(now) or not self._holds(hot):
            self._bodies.drop(question)
            return None
        return self._given(hot, began, now, self._clock.monotonic() - began)

    def is_head(self, data: bytes) -> bool:
        """True for a head that asks as one did whose body came separately: a moment's wait for the body is worth it."""
        return self.enabled and len(self._heads) > 0 and questions.of_head(data) in self._heads

    def remember_request(self, head: bytes, data: bytes, hot: Hot) -> None:
        """Keep what was asked twice. `head`: the first piece, where the request came in several."""
        if self._peek is None:
            return
        if head and (asks := questions.of_head(head)) is not None:
            _bounded(self._heads, asks)
        index = hash(data)
        if index not in self._seen:
            _bounded(self._seen, index)
            return
        self._requests.keep(data, hot, len(data))

    def remember_body(self, question: Question, body: bytes, hot: Hot) -> None:
        """For requests that differ in header fields that don't matter."""
        self._bodies.keep(question, hot, len(body))

    def _answer(self, hot: Hot) -> bytes | None:
        if self._peek is None or not self._holds(hot):
            return None
        began = self._clock.monotonic()
        now = self._clock.now()
        if self._peek(hot.entry.key, now) is not hot.entry:
            return None
        return self._given(hot, began, now, self._clock.monotonic() - began)

    def _holds(self, hot: Hot) -> bool:
        return hot.generation == self._generation() and self.enabled

    def _given(self, hot: Hot, began: float, now: float, lookup: float) -> bytes:
        entry = hot.entry
        if self._on_hit is not None:
            self._on_hit(entry, hot.plan, None)
        request_id = self._request_ids()
        response = hot.response(request_id, now)
        hot.repeat(request_id, began, self._clock.monotonic() - began, entry.age(now), lookup)
        return response


def _bounded(order: OrderedDict[_T, None], item: _T) -> None:
    order[item] = None
    if len(order) > _REMEMBERED:
        order.popitem(last=False)
