"""What a server answers to fixed questions: the only way to see the weights of one that has no contract.

Greedy questions show weights, tokenizer and (asked as a chat) the chat template; a seeded one that leaves
temperature and the rest to the server shows its generation defaults. Answers are compared by their text and
their log-probabilities; how far those move when the server batches is measured first, and is no change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from samewise.core import canonical
from samewise.ports import Call
from samewise.upstream.environment import Reply

MAX_MODELS = 8
"""Models listed by a server beyond which it is asked nothing (a hosted API: each question costs)."""
_TOKENS = 12
_EXACT = 1e-3
"""Nats that the log-probabilities of one answer may differ by in any case."""
_LOOSE = 0.25
"""Nats beyond which it is another answer in any case."""
_REMEMBERED = 16

Ask = Callable[[Call], Awaitable[Reply]]


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed question; the model and a fresh salt are added when it is asked."""

    name: str
    path: str
    body: dict[str, Any]


_GREEDY = {"max_tokens": _TOKENS, "temperature": 0}
PROBES = (
    Probe(
        name="greedy-1",
        path="/v1/completions",
        body={"prompt": "The first thing that she saw in the old house was", "logprobs": 1, **_GREEDY},
    ),
    Probe(name="greedy-2", path="/v1/completions", body={"prompt": "1, 1, 2, 3, 5, 8, 13,", "logprobs": 1, **_GREEDY}),
    Probe(
        name="chat",
        path="/v1/chat/completions",
        body={
            "messages": [
                {"role": "system", "content": "Answer in one word."},
                {"role": "user", "content": "Name a colour that is not red."},
            ],
            "logprobs": True,
            "top_logprobs": 1,
            **_GREEDY,
        },
    ),
    Probe(
        name="sampled",
        path="/v1/completions",
        body={"prompt": "A list of unusual words:", "max_tokens": _TOKENS, "seed": 1, "n": 4},
    ),
)
"""The order matters: the first that a server answers is asked twice before any other is asked."""


class Answered(msgspec.Struct, frozen=True):
    """What was said: the texts of the choices, nats of the chosen tokens, and the server's own fingerprint."""

    texts: tuple[str, ...]
    logprobs: tuple[float, ...] = ()
    fingerprint: str | None = None

    def digest(self) -> str:
        """Of texts and log-probabilities to two places."""
        rounded = [round(value, 2) for value in self.logprobs]
        return "sha256:" + canonical.sha256(canonical.encode(canonical.normalise([list(self.texts), rounded])))

    def distance(self, other: Answered) -> float:
        """Nats by which the log-probabilities differ at most; infinite where the texts do."""
        if self.texts != other.texts or len(self.logprobs) != len(other.logprobs):
            return float("inf")
        return max((abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=0.0)


class Inconclusive(Exception):
    """The server could not be asked now (busy, 5xx, silent)."""


Verdict = Literal["agreed", "refused", "unreproducible"]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers, by question (`MODEL/NAME`), and how each question went."""

    answers: dict[str, Answered]
    verdicts: dict[str, Verdict]
    tolerance: float = _EXACT
    fingerprint: str | None = None

    def evidence(self) -> dict[str, str]:
        """The part of the identity."""
        return {name: answer.digest() for name, answer in sorted(self.answers.items())}

    def state(self) -> str:
        """One word for all of it: agreed, refused, unreproducible."""
        if self.answers:
            return "agreed"
        return "unreproducible" if "unreproducible" in self.verdicts.values() else "refused"

    def agrees(self, other: Observation) -> bool:
        """True where the same questions got the same answers, within what batching moves."""
        tolerance = max(self.tolerance, other.tolerance)
        return (
            self.answers.keys() == other.answers.keys()
            and self.fingerprint == other.fingerprint
            and all(answer.distance(other.answers[name]) <= tolerance for name, answer in self.answers.items())
        )


class Prober:
    """Asks one server, and knows again what it has seen before, so that going back is going back."""

    def __init__(self, ask: Ask, salt: Callable[[], str]) -> None:
        """`ask` sends a call and returns a Reply; `salt` makes a fresh word for each cold question."""
        self._ask = ask
        self._salt = salt
        self._past: list[Observation] = []

    async def observe(self, models: Sequence[str], *, salted: bool) -> Observation:
        """Ask everything twice: alone, then all at once. Raises Inconclusive.

        A server whose first answer differs from its second is asked nothing more.
        """
        first: dict[str, Answered] = {}
        verdicts: dict[str, Verdict] = {}
        questions = {f"{model}/{probe.name}": (model, probe) for model in models for probe in PROBES}
        for name, (model, probe) in questions.items():
            answer = await self._question(model, probe, salted)
            if answer is None:
                verdicts[name] = "refused"
                continue
            if not first:
                again = await self._question(model, probe, salted)
                if again is None or again.distance(answer) > _LOOSE:
                    return Observation(answers={}, verdicts={name: "unreproducible"})
            first[name] = answer
        second = await asyncio.gather(*(self._question(*questions[name], salted) for name in first))
        kept: dict[str, Answered] = {}
        noise = 0.0
        for (name, answer), again in zip(first.items(), second, strict=True):
            moved = float("inf") if again is None else answer.distance(again)
            verdicts[name] = "agreed" if moved <= _LOOSE else "unreproducible"
            if moved <= _LOOSE:
                kept[name] = answer
                noise = max(noise, moved)
        prints = {answer.fingerprint for answer in (*first.values(), *(item for item in second if item))}
        seen = Observation(
            answers=kept,
            verdicts=verdicts,
            tolerance=min(_LOOSE, max(_EXACT, 4 * noise)),
            fingerprint=prints.pop() if len(prints) == 1 else None,
        )
        return self._known(seen)

    async def unchanged(self, seen: Observation, *, salted: bool) -> bool:
        """Ask again what was answered then. What differs is asked twice more: one agreement is enough.

        Raises Inconclusive.
        """
        for name, answer in seen.answers.items():
            model, _, short = name.rpartition("/")
            probe = next(probe for probe in PROBES if probe.name == short)
            for _ in range(3):
                again = await self._question(model, probe, salted)
                if again is not None and _same(answer, again, seen):
                    break
            else:
                return False
        return True

    def _known(self, seen: Observation) -> Observation:
        for past in self._past:
            if past.agrees(seen):
                return past
        self._past = [*self._past[1 - _REMEMBERED :], seen]
        return seen

    async def _question(self, model: str, probe: Probe, salted: bool) -> Answered | None:
        """The answer, None where the server refuses the question."""
        body = {"model": model, **probe.body, **({"cache_salt": self._salt()} if salted else {})}
        call = Call(
            method="POST",
            path=probe.path,
            body=canonical.encode(body),
            headers=(("content-type", "application/json"), ("accept", "application/json")),
            model=model,
            purpose="probe",
        )
        reply = await self._ask(call)
        if reply.status in {0, 408, 409, 425, 429} or reply.status >= 500:
            raise Inconclusive(str(reply.failure or f"{probe.path} answered {reply.status}"))
        return _read(reply.json())


def _same(then: Answered, now: Answered, seen: Observation) -> bool:
    same_print = seen.fingerprint is None or now.fingerprint == seen.fingerprint
    return same_print and then.distance(now) <= seen.tolerance


def _read(answer: Any) -> Answered | None:
    """Completions and chat alike; None where it is neither."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("choices"), list) or not answer["choices"]:
        return None
    texts: list[str] = []
    logprobs: list[float] = []
    for choice in answer["choices"]:
        if not isinstance(choice, Mapping):
            return None
        texts.append(
            canonical.encode([choice.get("text"), choice.get("message"), choice.get("finish_reason")]).decode()
        )
        given = choice.get("logprobs")
        if isinstance(given, Mapping):
            listed = given.get("token_logprobs")
            content = given.get("content")
            if isinstance(content, list):
                listed = [item.get("logprob") for item in content if isinstance(item, Mapping)]
            logprobs.extend(float(value) for value in listed or () if isinstance(value, int | float))
    fingerprint = answer.get("system_fingerprint")
    return Answered(tuple(texts), tuple(logprobs), fingerprint if isinstance(fingerprint, str) else None)
