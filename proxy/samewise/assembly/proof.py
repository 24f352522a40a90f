"""What watches over answers: verification in the background, acceptance of environments, signed receipts."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from samewise.assembly.parts import SystemClock
from samewise.core import prompts
from samewise.core.acceptance import Report
from samewise.core.entry import Entry
from samewise.core.fingerprint import Environment
from samewise.core.plan import Plan
from samewise.pipeline.acceptance import Runner, Target
from samewise.pipeline.control import Control
from samewise.pipeline.promotion import Promoter
from samewise.pipeline.receipts import Receipts
from samewise.pipeline.signing import signer
from samewise.pipeline.verify.acts import Acts
from samewise.pipeline.verify.book import Book
from samewise.pipeline.verify.consistency import Level
from samewise.pipeline.verify.episodes import Episodes
from samewise.pipeline.verify.judge import Judge
from samewise.pipeline.verify.recompute import Recomputer
from samewise.pipeline.verify.room import Room
from samewise.pipeline.verify.verifier import Policy, Verifier
from samewise.ports import Trace
from samewise.settings import Settings, SettingsError
from samewise.store.factory import Stores
from samewise.store.receipt_log import ReceiptLog
from samewise.telemetry.observer import Telemetry
from samewise.upstream.hook import Hook
from samewise.upstream.pool import Pool

TRIAL_CONCURRENCY = (1, 8)
"""How many questions of the acceptance are under way at once, where it decides over an environment."""


class Verification(NamedTuple):
    """What recomputes, what it wrote down, and what it comes to."""

    verifier: Verifier
    book: Book
    episodes: Episodes
    recomputer: Recomputer
    on_hit: Callable[[Entry, Plan, Trace | None], None] | None


def make_verification(
    settings: Settings, control: Control, *, clock: SystemClock, stores: Stores, engine: Pool, telemetry: Telemetry
) -> Verification:
    """What recomputes answers in the background and judges them."""
    wanted, who = settings.verify, f"proxy-{secrets.token_hex(4)}"
    recomputer = Recomputer(
        engine,
        clock,
        salts=control.salt,
        fresh=functools.partial(secrets.token_hex, 16),
        timeout=min(settings.timeouts.total, settings.timeouts.first_byte),
    )
    full = wanted.outputs == "full"
    book = Book(stores.records, clock, keep=wanted.keep, full=full, ids=functools.partial(secrets.token_hex, 8))
    episodes = Episodes(
        level=Level(target=wanted.target, floor=wanted.floor),
        on_floor=wanted.on_floor,
        control=control,
        engine=engine,
        book=book,
        observer=telemetry,
        clock=clock,
        who=who,
        hook=Hook(wanted.hook) if wanted.hook else None,
    )
    policy = Policy(
        rate=wanted.rate,
        concurrency=wanted.concurrency,
        action=wanted.action,
        warm=wanted.warm,
        each=wanted.each,
        queue=wanted.queue,
        release=wanted.release,
        agreements=settings.cache.agreements,
    )
    verifier = Verifier(
        policy=policy,
        judge=Judge(recomputer, near_tie_nats=wanted.near_tie_nats),
        room=Room(engine, recomputer, clock),
        acts=Acts(control=control, store=stores.store, clock=clock, who=who),
        book=book,
        episodes=episodes,
        withheld=control.withheld,
        store=stores.store,
        observer=telemetry,
        clock=clock,
    )
    return Verification(verifier, book, episodes, recomputer, verifier.on_hit if wanted.rate > 0 else None)


class Signed(NamedTuple):
    """What issues receipts, and where they are."""

    issuing: Receipts
    log: ReceiptLog


def make_receipts(settings: Settings, clock: SystemClock) -> Signed | None:
    """None where they are off. Raises SettingsError where they can't be signed or written."""

    wanted = settings.receipts
    if not wanted.enabled:
        return None
    if not wanted.secret:
        raise SettingsError("[receipts] secret", "is needed where receipts are enabled: any text that only you know")
    try:
        by = signer(wanted.secret)
    except ValueError as error:
        raise SettingsError("[receipts] secret", str(error)) from None
    try:
        log = ReceiptLog(Path(wanted.path), sign=by.sign, verify=by.verify)
    except OSError as error:
        why = f"{wanted.path} can't be written ({error.strerror or error}); name a file that can"
        raise SettingsError("[receipts] path", why) from None
    return Signed(Receipts(log, clock, functools.partial(secrets.token_hex, 16)), log)


def make_promoter(settings: Settings, clock: SystemClock, engine: Pool, control: Control) -> Promoter:
    """What lets a new environment prove itself before it becomes active."""
    wanted = settings.environments

    async def attempt(environment: Environment, model: str) -> Report:
        having = [each.url for each in engine.members() if each.environment and each.environment.id == environment.id]
        targets = [Target(model=model, environment=environment.id, member=url) for url in having]
        runner = Runner(engine, salt=functools.partial(secrets.token_hex, 16))
        return await runner.run(targets, prompts.shipped(), repeat=wanted.trial, concurrencies=TRIAL_CONCURRENCY)

    who = f"proxy-{secrets.token_hex(4)}"
    return Promoter(control=control, clock=clock, policy=wanted.rollout, attempt=attempt, who=who)
