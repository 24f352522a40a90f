"""Who may come in: keys, tenants, and the admin's guard."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from samewise.assembly.parts import SystemClock
from samewise.core.tenants import Key
from samewise.http.auth import Gate
from samewise.http.guard import Guard
from samewise.http.limits import Rates
from samewise.pipeline.control import Control
from samewise.pipeline.keywatch import KeyWatch
from samewise.ports import Notice
from samewise.settings import ApiKey, Settings, SettingsError, load_keys, stamp
from samewise.telemetry.observer import Telemetry


def make_gate(settings: Settings, clock: SystemClock, control: Control) -> Gate:
    """Who may come in at the data port, and which credentials travel on."""
    replaced = all(upstream.api_key for upstream in settings.upstreams)
    return Gate(control.keyring, settings.auth.forward, replaced=replaced, rates=Rates(clock))


def make_guard(settings: Settings, clock: SystemClock, telemetry: Telemetry) -> Guard:
    """Who may come in at the admin port."""

    def tell(kind: str, detail: dict[str, str]) -> None:
        telemetry.notice(Notice(kind=kind, detail=detail))

    return Guard(settings.admin.token, rates=Rates(clock), tell=tell)


def watch_keys(settings: Settings, control: Control, telemetry: Telemetry) -> KeyWatch | None:
    """Put the keys in force, and watch the file that has more of them. Raises SettingsError."""

    auth, seen = settings.auth, stamp(settings.auth.file)

    def read() -> list[Key]:
        try:
            return _keys((*auth.keys, *load_keys(auth.file)))
        except SettingsError as error:
            raise ValueError(str(error)) from None

    if not auth.file:
        control.use_keys(_keys(auth.keys))
    else:
        try:
            control.use_keys(read(), guarded=True)
        except ValueError as error:
            raise SettingsError("[auth] file", str(error)) from None
    if control.keyring.guarded and auth.salt:
        known = settings.store.secret or "\n".join(sorted(key.sha256 for key in control.keyring.configured))
        control.salts = hashlib.sha256(b"samewise salts\n" + known.encode()).digest()
    if not auth.file:
        return None
    use = functools.partial(control.use_keys, guarded=True)
    return KeyWatch(stamp=lambda: stamp(auth.file), seen=seen, read=read, use=use, observer=telemetry)


def _keys(keys: Iterable[ApiKey]) -> list[Key]:
    return [
        Key(tenant=key.tenant, sha256=key.sha256, models=key.models, share=key.share, per_minute=key.per_minute)
        for key in keys
    ]
