"""What an upstream says of itself, asked in a handful of small requests that cost it no generation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from samewise.core import canonical
from samewise.core.fingerprint import ENVIRONMENT_PATH, ID_LENGTH, Environment, environment_id, from_manifest
from samewise.ports import Call, UpstreamFailed
from samewise.upstream.client import Client
from samewise.upstream.options import Timeouts

_MAX_REPLY = 8 << 20
_CARD = ("id", "root", "parent", "max_model_len", "owned_by", "meta")
"""Members of a model's card that stay the same from one asking to the next."""


class Reply(msgspec.Struct, frozen=True):
    """What came back: `status` 0 where nothing did, and then `failure` says why."""

    status: int
    body: bytes = b""
    failure: UpstreamFailed | None = None

    def json(self) -> Any:
        """The body as JSON where the status is 200, else None."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


async def ask(client: Client, call: Call, timeouts: Timeouts) -> Reply:
    """One small exchange, read whole. Raises nothing."""
    try:
        exchange = await client.open(call, timeouts=timeouts)
    except UpstreamFailed as failure:
        return Reply(0, failure=failure)
    try:
        pieces: list[bytes] = []
        size = 0
        async for piece in exchange.chunks():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_REPLY:
                return Reply(0, failure=UpstreamFailed("protocol", f"{call.path} is too large", sent=True))
        return Reply(exchange.status, b"".join(pieces))
    except UpstreamFailed as failure:
        return Reply(0, failure=failure)
    finally:
        await exchange.close()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `contract` is `told` (with `environment`), `absent`, or `unclear` where it could not be asked.

    `ready` is False where `/health` answers 503. `models` is None where there is no list. `engine` is set
    only where two signs agree on it. `started` is the process's start in seconds since the epoch.
    """

    failure: UpstreamFailed | None = None
    ready: bool = True
    contract: Literal["told", "absent", "unclear"] = "unclear"
    environment: Environment | None = None
    models: tuple[dict[str, Any], ...] | None = None
    engine: str = "unknown"
    version: str | None = None
    started: float | None = None
    note: str = ""

    def names(self) -> tuple[str, ...]:
        """The ids of the models, in order of name."""
        return tuple(card["id"] for card in self.models or ())


def label_environment(label: str) -> Environment:
    """The environment that an operator vouches for: the label itself where it can be an id, else its hash."""
    manifest = {"id": label, "label": label}
    try:
        return from_manifest(manifest, "label")
    except ValueError:
        digest = canonical.sha256(label.encode("utf-8", "surrogatepass"))[:ID_LENGTH]
        return from_manifest({**manifest, "id": digest}, "label")


async def look(client: Client, timeouts: Timeouts) -> Facts:
    """Ask what the upstream is. Raises nothing; no generation is asked for."""

    async def get(path: str) -> Reply:
        return await ask(client, Call(method="GET", path=path, purpose="probe"), timeouts)

    told, listed, health = await asyncio.gather(get(ENVIRONMENT_PATH), get("/v1/models"), get("/health"))
    if told.failure is not None and told.failure.kind == "unreachable":
        return Facts(failure=told.failure)
    if not any(reply.status for reply in (told, listed, health)):
        return Facts(failure=told.failure)
    models = _cards(listed.json())
    ready = health.status != 503
    manifest = told.json()
    note = ""
    if isinstance(manifest, dict):
        try:
            environment = from_manifest(manifest)
            return Facts(contract="told", environment=environment, models=models, ready=ready)
        except ValueError as error:
            note = f"/samewise/environment is not a manifest: {error}"
    if told.status == 0 or told.status >= 500 or told.status == 429:
        return Facts(contract="unclear", models=models, ready=ready)
    version, metrics = await asyncio.gather(get("/version"), get("/metrics"))
    engine, number = await _engine(client, timeouts, models, version.json())
    return Facts(
        contract="absent",
        models=models,
        ready=ready,
        engine=engine,
        version=number,
        started=_started(metrics),
        note=note,
    )


def observed_environment(
    facts: Facts, evidence: Mapping[str, str], fingerprint: str | None, info: Mapping[str, Any], url: str
) -> Environment:
    """The environment of a server without the contract, as far as it can be seen.

    Where none of its answers could be checked (no `evidence`), nothing tells two such servers apart, so
    the URL is part of the identity and its entries are shared with no other.
    """
    models = facts.models or ()
    manifest: dict[str, Any] = {"observed": True, "engine": facts.engine, "models": list(models)}
    if len(models) == 1:
        manifest["model"] = models[0]["id"]
    if facts.version is not None:
        manifest["engine_version"] = facts.version
    if fingerprint is not None:
        manifest["system_fingerprint"] = fingerprint
    if evidence:
        manifest["probes"] = dict(evidence)
    else:
        manifest["url"] = url
    about = {**info, **({"note": facts.note} if facts.note else {})}
    if facts.started is not None:
        about["started"] = facts.started
    return from_manifest({"id": environment_id(manifest), **manifest, "info": about}, "observed")


def _cards(listing: Any) -> tuple[dict[str, Any], ...] | None:
    if not isinstance(listing, dict) or not isinstance(listing.get("data"), list):
        return None
    cards = [
        {name: card[name] for name in _CARD if card.get(name) is not None}
        for card in listing["data"]
        if isinstance(card, dict) and isinstance(card.get("id"), str)
    ]
    return tuple(sorted(cards, key=lambda card: str(card["id"])))


async def _engine(
    client: Client, timeouts: Timeouts, models: Sequence[Mapping[str, Any]] | None, version: Any
) -> tuple[str, str | None]:
    """Engine and version where the model list's owner and a second page agree, else `unknown`."""
    owners = {card.get("owned_by") for card in models or () if "parent" not in card}
    number = version.get("version") if isinstance(version, dict) else None
    number = number if isinstance(number, str) else None

    async def page(path: str) -> dict[str, Any]:
        found = (await ask(client, Call(method="GET", path=path, purpose="probe"), timeouts)).json()
        return found if isinstance(found, dict) else {}

    match sorted(str(owner) for owner in owners):
        case ["vllm"] if number is not None:
            return "vllm", number
        case ["sglang"]:
            info = await page("/server_info") or await page("/get_server_info")
            if isinstance(info.get("version"), str):
                return "sglang", info["version"]
        case ["llamacpp"]:
            info = await page("/props")
            if "default_generation_settings" in info:
                build = info.get("build_info")
                return "llama.cpp", build if isinstance(build, str) else number
    return "unknown", number


def _started(metrics: Reply) -> float | None:
    if metrics.status != 200:
        return None
    at = metrics.body.find(b"\nprocess_start_time_seconds ")
    if at < 0:
        return None
    try:
        return float(metrics.body[at + 1 :].split(b"\n", 1)[0].split()[1])
    except (IndexError, ValueError):
        return None
