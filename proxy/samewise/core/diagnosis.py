"""What is wrong, and what to do about it: from facts to findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from samewise.core.fingerprint import Environment

State = Literal["ok", "warning", "error"]
SKEW = 2.0
"""Seconds by which clocks may differ."""
_SMALL = frozenset({"bfloat16", "float16", "half"})
_KEEPS = "allkeys-lru"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `do` says what to do; empty where all is well."""

    check: str
    state: State
    message: str
    do: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check=check, state="ok", message=message)


def warning(check: str, message: str, do: str) -> Finding:
    """It works, and may disappoint."""
    return Finding(check=check, state="warning", message=message, do=do)


def error(check: str, message: str, do: str) -> Finding:
    """It does not work."""
    return Finding(check=check, state="error", message=message, do=do)


def settings(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Settings that work and may surprise. `config` are the settings, nested, secrets masked."""
    found = []
    server, auth = config["server"], config["auth"]
    if not _local(str(server["host"])) and not auth["keys"]:
        do = "list [auth] keys, or set [server] host to a loopback address"
        found.append(warning("settings", "the data port is open to whoever reaches it", do))
    if not config["verify"]["rate"]:
        do = "set [verify] rate to a small share, such as 0.01"
        found.append(warning("settings", "nothing that is served is ever recomputed", do))
    if config["cache"]["mode"] != "on":
        do = 'set [cache] mode = "on" for a cache that reads and writes'
        found.append(warning("settings", f"[cache] mode is {config['cache']['mode']}", do))
    yield from found or [ok("settings", "valid")]


def store(url: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """`facts`: `available`, `error`, and of a Redis `version`, `maxmemory`, `policy`, `persistent`, `skew`."""
    scheme = urlsplit(url).scheme
    if not facts.get("available", True):
        yield error(
            "store",
            f"can't be reached ({facts.get('error') or 'unknown'})",
            "start it, or change [store] url; answers are not cached now",
        )
        return
    yield ok("store", f"{scheme} answers" + (f", version {facts['version']}" if facts.get("version") else ""))
    if scheme == "memory":
        yield warning(
            "store", "entries and invalidations end with the process", 'use [store] url = "sqlite:///samewise.db"'
        )
    if not scheme.startswith("redis"):
        return
    yield from _redis(url, facts)


def _redis(url: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts.get("hidden"):
        yield warning(
            "store settings", f"Redis does not tell ({facts['hidden']})", "allow INFO and CONFIG GET, or check by hand"
        )
    policy, limit = facts.get("policy"), facts.get("maxmemory")
    if limit == 0:
        yield warning(
            "eviction",
            "Redis has no maxmemory: it grows until the machine has no memory",
            f"CONFIG SET maxmemory, and maxmemory-policy {_KEEPS}",
        )
    elif policy == "noeviction":
        yield warning(
            "eviction", "a full Redis refuses new entries (noeviction)", f"CONFIG SET maxmemory-policy {_KEEPS}"
        )
    elif policy is not None:
        yield ok("eviction", f"maxmemory {limit}, {policy}")
    if facts.get("persistent") is False:
        yield warning(
            "persistence",
            "a Redis that restarts forgets entries, profiles and invalidations",
            "CONFIG SET appendonly yes",
        )
    elif facts.get("persistent"):
        yield ok("persistence", "Redis writes to disk")
    parts = urlsplit(url)
    if parts.scheme.startswith("rediss"):
        yield ok("store TLS", "on")
    elif not _local(parts.netloc):
        yield warning("store TLS", "entries travel in the clear", "use rediss://, or keep Redis on a private network")
    if facts.get("skew") is not None:
        yield skew("store clock", float(facts["skew"]))


def skew(check: str, seconds: float) -> Finding:
    """How far another clock is from ours."""
    if abs(seconds) <= SKEW:
        return ok(check, f"within {SKEW:g} s of ours")
    return warning(
        check,
        f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} ours",
        "run NTP on both machines: ages and times to live are wrong by that much",
    )


def upstreams(members: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """`members`: `url`, `healthy`, `error`, `models`, `skew`."""
    if not members:
        yield error("upstreams", "there are none", "name one in [[upstreams]] or with --upstream")
    for each in members:
        name = f"upstream {each['url']}"
        if each.get("healthy"):
            yield ok(name, f"healthy, models {', '.join(each.get('models') or ()) or 'not listed'}")
        else:
            yield error(name, f"down: {each.get('error') or 'no answer'}", "start it, or change [[upstreams]] url")
        if each.get("skew") is not None and abs(each["skew"]) > SKEW:
            yield skew(f"{name} clock", float(each["skew"]))


def environments(found: Sequence[Environment], active: Sequence[str]) -> Iterator[Finding]:
    """What the environments say of themselves. `active` are the ids that are served."""
    if not found:
        yield warning("environment", "no upstream has said what it is", "nothing is cached until one has; is it up?")
    for each in found:
        check = f"environment {each.id[:12]}"
        if each.id not in active:
            yield warning(check, "waits: its upstreams serve no hits", f"samewise environments activate {each.id}")
        yield from _identity(each, check)
        yield from _switches(each, check)


def _identity(each: Environment, check: str) -> Iterator[Finding]:
    match each.origin:
        case "observed":
            yield warning(
                check,
                "observed: a change is noticed at the next probe, not at once",
                "start vLLM through `samewise-backend serve --engine vllm`, which says what it is",
            )
        case "label":
            yield warning(
                check, "a label of yours: no change is noticed", "change the label whenever anything behind it changes"
            )
        case _:
            yield ok(check, f"{each.engine} {each.manifest.get('engine_version', '')}, told by the backend")
    stale = sorted(name for name in each.manifest if name.endswith("_on_disk"))
    if stale:
        names = ", ".join(name.removesuffix("_on_disk") for name in stale)
        yield error(
            check,
            f"the files on disk are not those that were loaded: {names}",
            "restart the backend, or put the files back",
        )
    unknown = sorted(name for name, value in each.manifest.items() if str(value).startswith("unknown:"))
    if unknown:
        yield warning(
            check,
            f"not known, so that its entries end with this process: {', '.join(unknown)}",
            "restart the backend while its files rest",
        )
    if each.manifest.get("mutated"):
        yield warning(check, "its weights were changed past their files", "its entries end with this process")


def _switches(each: Environment, check: str) -> Iterator[Finding]:
    manifest = each.manifest
    if each.origin != "contract":
        return
    name = f"{check} determinism"
    device = manifest.get("device")
    on_gpu = isinstance(device, dict) and device.get("kind") == "cuda"
    invariant = manifest.get("batch_invariant") is True
    if each.engine == "vllm" and manifest.get("dtype") in _SMALL and not invariant:
        do = "set VLLM_BATCH_INVARIANT=1" if on_gpu else "use --dtype float32, or verify and see"
        yield warning(name, f"{manifest['dtype']} without batch-invariant kernels: batches move answers", do)
    elif each.engine == "vllm" and on_gpu and not invariant:
        yield warning(
            name, "no batch-invariant kernels", "set VLLM_BATCH_INVARIANT=1 where the device has them, or verify"
        )
    else:
        yield ok(name, f"dtype {manifest.get('dtype', 'unknown')}" + (", batch-invariant" if invariant else ""))


def _local(place: str) -> bool:
    host = place.rpartition("@")[2].split(",")[0]
    return host.startswith(("127.", "localhost", "[::1]")) or not host
