"""The reference engine: many sequences, one thread, one token or one piece of a prompt of each in turn.

A step computes one sequence alone, so a sequence's tokens can't depend on what else runs; taking turns keeps
a long answer, or a long prompt, from delaying a short one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from samewise_backend.kv_blocks import BLOCK
from samewise_backend.language_model import Context, LanguageModel, NoReuse, PrefixReuse
from samewise_backend.sampler import RequestSampler, Sampler, SamplerFactory, Sampling
from samewise_backend.text import Detokeniser, Output

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Candidate:
    """A token and its log-probability in nats, before temperature and penalties (vLLM's `raw_logprobs`)."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Chosen:
    """The sampled token, and the likeliest ones at its place in falling order."""

    token: int
    logprob: float
    top: tuple[Candidate, ...]


@dataclass(frozen=True)
class Step:
    """What one step added. `text` may be empty while a character or a stop string is incomplete.

    `cached` counts the prompt's tokens whose keys and values were found, on every step of a sequence. `chosen` is
    there where log-probabilities were asked for. `finish` is set on the last step, and `stop` names the stop string
    or the stop token (an id) that ended it.
    """

    token: int
    text: str
    chosen: Chosen | None = None
    finish: FinishReason | None = None
    stop: int | str | None = None
    cached: int = 0


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of the prompt itself, None for its first token; comes once, before the first step."""

    prompt: tuple[Chosen | None, ...]


@dataclass(frozen=True)
class Failed:
    """The sequence can't go on; nothing follows."""

    message: str


Event = Step | Scored | Failed


@dataclass(frozen=True)
class Job:
    """One choice: what to continue, how to sample, when to stop. `logprobs` is the number of candidates, None for none.

    `eos` and `stop_tokens` end it; the former is not named as the reason. `deliver` is called in the engine's
    thread and must not block.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    deliver: Callable[[Event], None]
    eos: frozenset[int] = frozenset()
    stop_tokens: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None
    score_prompt: bool = False
    skip_special: bool = True
    salt: str | None = None


@dataclass(eq=False)
class _Sequence:
    job: Job
    sampler: Sampler
    detokeniser: Detokeniser
    output: Output
    context: Context = field(default_factory=Context)
    tokens: list[int] = field(default_factory=list)
    pending: Sequence[int] = ()
    cached: int = 0
    scores: list[torch.Tensor] = field(default_factory=list)


class Ticket:
    """A submitted job. `abort` may be called from any thread, at any time; no event follows for long."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()


class Engine:
    """Owns the model: only its thread touches it. `running` and `waiting` may be read by any thread.

    `sampler` makes a sampler for each job. `max_sequences` bounds those that hold keys and values at once;
    others wait in the order of their coming. A prompt is computed in pieces of `block` tokens, counted from its
    start; `reuse` may spare the first of them.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_sequences: int = 64,
        sampler: SamplerFactory = RequestSampler,
        reuse: PrefixReuse | None = None,
        block: int = BLOCK,
    ) -> None:
        self.model = model
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self._max = max_sequences
        self._sampler = sampler
        self._reuse: PrefixReuse = NoReuse() if reuse is None else reuse
        self._block = block
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[Job, Ticket]] = deque()
        self._running: deque[tuple[_Sequence, Ticket]] = deque()
        self._swaps: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the step in hand; what still runs gets `Failed`."""
        self._inbox.put(None)
        self._thread.join()

    def submit(self, job: Job) -> Ticket:
        """Queue a job; its events come through `deliver`."""
        ticket = Ticket()
        self._inbox.put(lambda: self._waiting.append((job, ticket)))
        return ticket

    def swap(self, model: LanguageModel, done: Callable[[], None]) -> None:
        """Go on with another model once what runs has ended; no sequence is computed by two. `done` follows at once."""

        def exchange() -> None:
            self.model = model
            done()

        self._inbox.put(lambda: self._swaps.append(exchange))

    def _run(self) -> None:
        while self._receive():
            if self._swaps and not self._running:
                self._swaps.popleft()()
            while self._waiting and len(self._running) < self._max and not self._swaps:
                self._admit(*self._waiting.popleft())
            if self._running:
                sequence, ticket = self._running[0]
                if not ticket.aborted.is_set() and self._advance(sequence):
                    self._running.rotate(-1)
                else:
                    self._running.popleft()
        for job in [*(sequence.job for sequence, _ in self._running), *(job for job, _ in self._waiting)]:
            job.deliver(Failed("the engine was stopped"))

    def _receive(self) -> bool:
        """Take in what was submitted; wait for it where there is nothing else to do. False to end."""
        block = not (self._running or self._waiting or self._swaps)
        while True:
            try:
                command = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            block = False

    def _admit(self, job: Job, ticket: Ticket) -> None:
        if ticket.aborted.is_set():
            return
        output = Output(job.stops, include=job.include_stop, min_tokens=job.sampling.min_tokens)
        detokeniser = Detokeniser(self.model.fast, job.prompt, skip_special=job.skip_special)
        sequence = _Sequence(job, self._sampler(job.sampling), detokeniser, output, pending=job.prompt)
        found = None if job.score_prompt else self._reuse.find(job.prompt, job.salt)
        if found is not None:
            sequence.context = found
            sequence.pending = job.prompt[found.length :]
            sequence.cached = found.length
        self.prompt_tokens += len(job.prompt)
        self.cached_tokens += sequence.cached
        self._running.append((sequence, ticket))

    def _advance(self, sequence: _Sequence) -> bool:
        """Compute one token, or one piece of the prompt. Whether the sequence goes on."""
        job = sequence.job
        try:
            logits = self._compute(sequence)
            if logits is None:
                return True
            step = self._step(sequence, logits)
        except Exception as error:  # one sequence's failure must not end the others
            job.deliver(Failed(f"{type(error).__name__}: {error}"))
            return False
        if step is None:
            return False
        job.deliver(step)
        return step.finish is None

    def _compute(self, sequence: _Sequence) -> torch.Tensor | None:
        """Logits after the last token, or after each of a prompt that is scored; None while the prompt isn't done."""
        job = sequence.job
        scoring = job.score_prompt and not sequence.tokens
        piece, sequence.pending = sequence.pending[: self._block], sequence.pending[self._block :]
        logits = self.model.forward(sequence.context, piece, every=scoring)
        if scoring:
            sequence.scores.append(logits)
        if sequence.pending:
            return None
        if not sequence.tokens:
            self._reuse.keep(sequence.context, job.salt)
        return torch.cat(sequence.scores) if scoring else logits

    def _step(self, sequence: _Sequence, logits: torch.Tensor) -> Step | None:
        job = sequence.job
        if job.score_prompt and not sequence.tokens:
            sequence.scores.clear()
            job.deliver(Scored(_score(logits, job.prompt, job.logprobs or 0)))
            logits = logits[-1]
            if job.max_tokens == 0:
                job.deliver(Step(token=-1, text="", finish="length"))
                return None
        raw = logits.log_softmax(dim=-1) if job.logprobs is not None else None
        token = sequence.sampler.choose(logits, job.prompt, sequence.tokens)
        sequence.tokens.append(token)
        sequence.pending = (token,)
        self.generated_tokens += 1
        chosen = None if raw is None else _chosen(raw, token, job.logprobs or 0)
        return self._finish(sequence, token, chosen)

    def _finish(self, sequence: _Sequence, token: int, chosen: Chosen | None) -> Step:
        job, output = sequence.job, sequence.output
        finish: FinishReason | None = None
        stop: int | str | None = None
        enough = len(sequence.tokens) >= job.sampling.min_tokens
        if enough and (token in job.eos or token in job.stop_tokens):
            finish, stop = "stop", None if token in job.eos else token
        if finish is None or job.include_stop:
            matched = output.add(sequence.detokeniser.add(token))
            if matched is not None and finish is None:
                finish, stop = "stop", matched
        if finish is None and len(sequence.tokens) >= job.max_tokens:
            finish = "length"
        return Step(token, output.take(finished=finish is not None), chosen, finish, stop, sequence.cached)


def _chosen(raw: torch.Tensor, token: int, count: int) -> Chosen:
    best = raw.topk(min(count, raw.numel())) if count else None
    pairs: list[Any] = [] if best is None else list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Chosen(token, float(raw[token]), tuple(Candidate(one, logprob) for one, logprob in pairs))


def _score(logits: torch.Tensor, prompt: Sequence[int], count: int) -> tuple[Chosen | None, ...]:
    raw = logits.log_softmax(dim=-1)
    rest = (_chosen(raw[place], token, count) for place, token in enumerate(prompt[1:]))
    return (None, *rest)
