"""Settings: flag > variable `SAMEWISE_<SECTION>__<KEY>` > TOML file > default. A wrong one is a `SettingsError`."""

from __future__ import annotations

from samewise.settings.keys import load_keys, stamp
from samewise.settings.load import Settings, SettingsError, load
from samewise.settings.sections import (
    Admin,
    ApiKey,
    Auth,
    Cache,
    Environments,
    Profile,
    Receipts,
    Routing,
    Sampling,
    Server,
    Store,
    Telemetry,
    Timeouts,
    Upstream,
    Verify,
    is_loopback,
)
from samewise.settings.show import flat, masked

__all__ = [
    "Admin",
    "ApiKey",
    "Auth",
    "Cache",
    "Environments",
    "Profile",
    "Receipts",
    "Routing",
    "Sampling",
    "Server",
    "Settings",
    "SettingsError",
    "Store",
    "Telemetry",
    "Timeouts",
    "Upstream",
    "Verify",
    "flat",
    "is_loopback",
    "load",
    "load_keys",
    "masked",
    "stamp",
]
