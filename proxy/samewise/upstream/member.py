"""One upstream as it lives: what it is, how it fares, what runs on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from samewise.core.fingerprint import Environment
from samewise.ports import Call, Clock, Member, UpstreamFailed
from samewise.upstream.client import Client
from samewise.upstream.environment import Facts, Reply, ask, label_environment, look, observed_environment
from samewise.upstream.exchange import HttpExchange
from samewise.upstream.health import Health
from samewise.upstream.observe import MAX_MODELS, Inconclusive, Observation, Prober
from samewise.upstream.options import Timeouts, UpstreamOptions

_log = logging.getLogger("samewise.upstream")

_LOOK = Timeouts(connect=2.0, first_byte=3.0, idle=3.0, total=5.0)
"""Limits of the small requests."""
_PROBE = Timeouts(connect=2.0, first_byte=60.0, idle=30.0, total=120.0)
"""Limits of a question that the server must think about."""
_PATIENCE = 3
"""Inconclusive observations of an unknown server after which it is described without its answers."""
_SPACING = 0.1
"""Seconds between two looks for the sake of answers that name another environment; it doubles while they are vain."""
NOBODY = ""
"""The environment of an answer while nobody knows what gives it: equal to no id, so it is stored under none."""
_BLIND = ["weights replaced within the time between two probes", "the engine's own seed", "the device"]


class Upstream:
    """A member of the pool. All of it runs on one event loop.

    A server with the contract is followed by its manifest; one without is observed, and while it is
    observed anew after a restart its answers name NOBODY, so that nothing is stored that
    another model may have said. The last known environment stays when the server is away.
    """

    def __init__(
        self,
        options: UpstreamOptions,
        client: Client,
        *,
        poll: float,
        clock: Clock,
        salt: Callable[[], str],
        on_change: Callable[[Member], None],
        on_restart: Callable[[str], None] = lambda url: None,
    ) -> None:
        """`on_restart` is told the URL when another process answers than before: its caches are cold."""
        self.url = client.base
        self.idle = asyncio.Event()
        """Set while nothing of ours runs on it."""
        self.running = 0
        self._count(0)
        self.draining = False
        self.environment: Environment | None = None
        self.models: tuple[str, ...] = ()
        self.known = asyncio.Event()
        """Set once the first look is over, observation included, or has failed."""
        self.health = Health(clock)
        self._client = client
        self._poll = poll
        self._clock = clock
        self._on_change = on_change
        self._on_restart = on_restart
        self._life = ""
        self._label = None if options.environment in {"", "auto"} else label_environment(options.environment)
        self._interval = options.probe
        self._prober = Prober(self._ask, salt)
        self._seen: Observation | None = None
        self._facts: Facts | None = None
        self._suspect = False
        self._failed_observations = 0
        self._probe_at = 0.0
        self._observing: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._last_seen = 0.0
        self._told: tuple[Any, ...] = ()
        self._followed = float("-inf")
        self._spacing = _SPACING
        self._later: asyncio.TimerHandle | None = None

    # --- what it is now -------------------------------------------------------------------------------

    @property
    def since(self) -> float:
        """When it became good for requests, in monotonic seconds."""
        return self.health.since

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of its prefix cache, as its manifest says; 0 where it doesn't."""
        manifest = self.environment.manifest if self.environment is not None else {}
        resolved = manifest.get("resolved")
        cache = resolved.get("cache_config") if isinstance(resolved, dict) else None
        size = manifest.get("block_size", cache.get("block_size") if isinstance(cache, dict) else None)
        return size if isinstance(size, int) and size > 0 else 0

    def member(self) -> Member:
        """As the rest of the house sees it."""
        return Member(
            url=self.url,
            healthy=self.health.good(),
            draining=self.draining,
            environment=self.environment,
            models=self.models,
            running=self.running,
            error=self.health.error,
            seen=self._last_seen,
        )

    # --- its part in requests -------------------------------------------------------------------------

    async def open(self, call: Call) -> HttpExchange:
        """Send the call here. Raises UpstreamFailed."""
        environment = self.environment
        self._count(1)
        try:
            exchange = await self._client.open(
                call,
                environment=environment.id if environment is not None and not self._suspect else NOBODY,
                vouched=self._label is not None,
                instance=_instance(environment),
                concurrency=self.running,
                ended=self._ended,
            )
        except UpstreamFailed as failure:
            self._ended(failure)
            raise
        except BaseException:
            self._count(-1)
            raise
        self._follow(exchange.environment)
        return exchange

    def _ended(self, failure: UpstreamFailed | None) -> None:
        self._count(-1)
        if failure is None:
            self.health.succeeded()
            return
        self.health.failed(failure)
        self._probe_at = min(self._probe_at, self._clock.monotonic() + self._poll)
        if failure.kind == "unreachable":
            self._suspect = self._seen is not None or self._suspect
        self._wake.set()
        self._tell()

    def _count(self, change: int) -> None:
        self.running += change
        if self.running:
            self.idle.clear()
        else:
            self.idle.set()

    def _follow(self, named: str | None) -> None:
        """Look at once where an answer names another environment than the one that is known."""
        if self._label is not None or not named or (self.environment and self.environment.id == named):
            return
        wait = self._followed + self._spacing - self._clock.monotonic()
        if wait <= -self._poll:
            self._spacing = _SPACING
        if wait <= 0:
            self._contradicted()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait, self._contradicted)

    def _contradicted(self) -> None:
        """Look now. Answers that go on to contradict what is seen are looked into less and less often."""
        self._later = None
        self._followed = self._clock.monotonic()
        self._spacing = min(self._poll, 2 * self._spacing)
        self._wake.set()

    # --- looking --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look now, and from now on."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.url}")

    async def stop(self) -> None:
        """Look no more, and end the connections."""
        if self._later is not None:
            self._later.cancel()
        for task in (self._watching, self._observing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._watching = self._observing = None
        await self._client.close()

    async def look(self, *, thorough: bool = False) -> None:
        """Look once. `thorough`: ask an observed server its questions too, and wait for its answers."""
        async with self._looking:
            if thorough:
                self._probe_at = 0.0
            self._take(await look(self._client, _LOOK))
        if thorough and self._observing is not None:
            await asyncio.wait([self._observing])

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.look()
            except Exception:
                _log.exception("looking at %s failed", self.url)
                self.known.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await self._wake.wait()

    def _take(self, facts: Facts) -> None:
        """Draw the conclusions of one look."""
        if facts.failure is not None:
            self.health.unseen(facts.failure)
            self._suspect = self._seen is not None or self._suspect
            self.known.set()
            self._tell()
            return
        self.health.looked(ready=facts.ready)
        self._last_seen = self._clock.now()
        if facts.models is not None:
            self.models = facts.names()
        if self._label is not None:
            self.environment = self._label
        elif facts.contract == "told":
            self.environment = facts.environment
            self._seen, self._facts, self._suspect = None, None, False
        elif facts.contract == "absent":
            self._observe(facts)
            if self._observing is not None:
                self._tell()
                return
        self.known.set()
        self._tell()

    # --- observing ------------------------------------------------------------------------------------

    def _observe(self, facts: Facts) -> None:
        if self._observing is not None:
            return
        before = self._facts
        anew = self._suspect or self._seen is None or before is None or _restarted(before, facts)
        due = self._interval > 0 and self._clock.monotonic() >= self._probe_at
        if self._interval == 0 or not facts.models or len(facts.models) > MAX_MODELS:
            self._describe(facts, None)
            self._suspect = False
        elif anew or (due and self._seen is not None and self._seen.answers):
            if anew and self._seen is not None:
                self._suspect = True
            if anew and self._failed_observations and not due:
                return
            self._observing = asyncio.create_task(self._question(facts, anew), name=f"observe {self.url}")
        elif self._seen is not None:
            self._describe(facts, self._seen)

    async def _question(self, facts: Facts, anew: bool) -> None:
        """Ask, and settle what the server is."""
        salted = facts.engine == "vllm"
        try:
            seen = self._seen
            if anew or seen is None or not await self._prober.unchanged(seen, salted=salted):
                self._suspect = seen is not None
                seen = await self._prober.observe(facts.names(), salted=salted)
            self._seen, self._suspect, self._failed_observations = seen, False, 0
            self._probe_at = self._clock.monotonic() + self._interval
            self._describe(facts, seen)
        except Inconclusive as reason:
            self._failed_observations += 1
            self._probe_at = self._clock.monotonic() + min(self._interval, self._poll * 2**self._failed_observations)
            if self._seen is None and self._failed_observations >= _PATIENCE:
                self._describe(facts, None, str(reason))
        except Exception:
            _log.exception("observing %s failed", self.url)
            self._probe_at = self._clock.monotonic() + self._interval
        finally:
            self._observing = None
            self.known.set()
            self._tell()

    def _describe(self, facts: Facts, seen: Observation | None, failure: str = "") -> None:
        if seen is not None:
            state = {"state": seen.state(), **seen.verdicts}
        elif failure:
            state = {"state": "unanswered", "why": failure}
        elif self._interval == 0:
            state = {"state": "off"}
        else:
            count = len(facts.models or ())
            state = {"state": "not asked", "why": f"{count} models are listed; 1 to {MAX_MODELS} are asked"}
        self._facts = facts
        self.environment = observed_environment(
            facts,
            seen.evidence() if seen is not None else {},
            seen.fingerprint if seen is not None else None,
            {"probes": state, "unseen": _BLIND},
            self.url,
        )

    async def _ask(self, call: Call) -> Reply:
        self._count(1)
        try:
            return await ask(self._client, call, _PROBE)
        finally:
            self._count(-1)

    # --- telling --------------------------------------------------------------------------------------

    def drain(self, on: bool) -> None:
        """No new request comes here (or they do again); what runs goes on."""
        self.draining = on
        self._tell()

    def _lives(self) -> None:
        started = self._facts.started if self._facts is not None else None
        life = _instance(self.environment) or (str(started) if started is not None else "")
        if life and self._life not in {"", life}:
            self._on_restart(self.url)
        self._life = life or self._life

    def _tell(self) -> None:
        self._lives()
        environment = self.environment.id if self.environment is not None else None
        now = (environment, self.health.good(), self.draining, self.models)
        if now != self._told:
            if now[:1] != self._told[:1]:
                self._spacing = _SPACING
            self._told = now
            self._on_change(self.member())


def _instance(environment: Environment | None) -> str | None:
    info = environment.manifest.get("info") if environment is not None else None
    instance = info.get("instance") if isinstance(info, dict) else None
    return instance if isinstance(instance, str) else None


def _restarted(before: Facts, now: Facts) -> bool:
    return (before.models, before.engine, before.version, before.started) != (
        now.models,
        now.engine,
        now.version,
        now.started,
    )
