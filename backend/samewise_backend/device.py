"""What a model runs on, as the machine reports it without starting an engine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["auto", "cpu", "cuda"]
"""What may be asked for."""

_SIMD = ("sse4", "avx", "amx", "fma", "f16c", "vnni", "bf16", "asimd", "sve", "neon", "i8mm", "dotprod")
"""Families of CPU flags by which numeric libraries choose their kernels."""

_SETTINGS = ("power.limit", "clocks.max.sm", "clocks.applications.graphics", "compute_mode", "ecc.mode.current")
_QUERY = ("index", "uuid", "name", "compute_cap", "driver_version", *_SETTINGS)


@dataclass(frozen=True)
class Device:
    """`kind` is what an engine runs on. `capability` is the lowest compute capability among the devices used.

    `settings` are power, clock and mode settings where they can be read: settings, never readings of the moment.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    count: int = 1
    capability: tuple[int, int] | None = None
    driver: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    cores: int = 1

    def manifest(self) -> dict[str, Any]:
        """The part of the identity that is about the device."""
        known: dict[str, Any] = {"kind": self.kind, "model": self.name, "count": self.count}
        if self.kind == "cuda":
            capability = None if self.capability is None else ".".join(map(str, self.capability))
            return known | {"capability": capability, "driver": self.driver, "settings": dict(self.settings)}
        return known | {"flags": list(self.flags)}


def probe(kind: Kind = "auto") -> Device:
    """The devices that this process may use: NVIDIA's where `nvidia-smi` reports one, else the CPU.

    Raises LookupError where `cuda` is asked for and none is reported.
    """
    if kind != "cpu":
        found = parse_nvidia_smi(_nvidia_smi(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        if found is not None:
            return found
        if kind == "cuda":
            raise LookupError("no CUDA device is reported by nvidia-smi")
    return _cpu()


def _nvidia_smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_nvidia_smi(text: str, visible: str | None = None) -> Device | None:
    """The devices of `nvidia-smi --query-gpu`, one a line, narrowed by CUDA_VISIBLE_DEVICES. None for none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    devices = [dict(zip(_QUERY, row, strict=True)) for row in rows if len(row) == len(_QUERY)]
    if visible is not None:
        wanted = [name.strip() for name in visible.split(",") if name.strip()]
        devices = [one for one in devices if any(_matches(one, name) for name in wanted)]
    if not devices:
        return None
    capabilities = [_capability(one["compute_cap"]) for one in devices]
    known = [one for one in capabilities if one is not None]
    return Device(
        kind="cuda",
        name=", ".join(sorted({one["name"] for one in devices})),
        count=len(devices),
        capability=min(known) if len(known) == len(capabilities) else None,
        driver=devices[0]["driver_version"],
        settings={name: _setting(devices, name) for name in _SETTINGS if "N/A" not in _setting(devices, name)},
        cores=_cores(),
    )


def _setting(devices: list[dict[str, str]], name: str) -> str:
    return ", ".join(sorted({one[name] for one in devices}))


def _matches(device: Mapping[str, str], name: str) -> bool:
    return device["index"] == name or device["uuid"].startswith(name)


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _cpu() -> Device:
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip().lower(), value.strip())
    except OSError:
        pass
    words = (facts.get("flags") or facts.get("features") or "").split()
    return Device(
        kind="cpu",
        name=facts.get("model name") or platform.processor() or platform.machine(),
        flags=tuple(sorted(word for word in words if word.startswith(_SIMD) or word.endswith(("vnni", "bf16")))),
        cores=_cores(),
    )
