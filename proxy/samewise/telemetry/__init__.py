"""What happened, told to operators: metrics, traces, logs, and the recent past."""

from __future__ import annotations

from samewise.telemetry.build import build
from samewise.telemetry.log import Log, Repeats
from samewise.telemetry.log import start as start_logging
from samewise.telemetry.observer import Telemetry
from samewise.telemetry.prometheus import exposition, negotiate
from samewise.telemetry.recent import Happened, Recent
from samewise.telemetry.snapshot import Snapshot, merge
from samewise.telemetry.sources import stores, upstreams
from samewise.telemetry.tally import Tallies

__all__ = [
    "Happened",
    "Log",
    "Recent",
    "Repeats",
    "Snapshot",
    "Tallies",
    "Telemetry",
    "build",
    "exposition",
    "merge",
    "negotiate",
    "start_logging",
    "stores",
    "upstreams",
]
