"""The admin port: what operators see and do, over HTTP."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from samewise.core import explain
from samewise.core.answer import Headers
from samewise.core.body import parse
from samewise.core.controls import parse_controls
from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.core.families.contract import Family
from samewise.http import asked as bodies
from samewise.http.auth import CREDENTIALS, Gate
from samewise.http.guard import Guard, by, middleware
from samewise.http.health import Health
from samewise.pipeline import warmth
from samewise.pipeline.answer import Answerer
from samewise.pipeline.ask import Ask
from samewise.pipeline.nearest import Neighbours
from samewise.pipeline.operations import Operations
from samewise.pipeline.profiles import Profile
from samewise.ports import Prefixes

PREFIX = "/samewise/v1"
MAX_BODY = 32 * 1024 * 1024


class Sight(Protocol):
    """What telemetry shows here."""

    async def prometheus(self, accept: str | None = None) -> tuple[bytes, str]:
        """The exposition and its content type."""

    async def status(self) -> dict[str, Any]:
        """Counters and figures of this moment, ready for JSON."""

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens, as it happens, ready for JSON."""


class Routes(Protocol):
    """A part of the admin port with a module of its own."""

    def add_to(self, router: web.UrlDispatcher) -> None: ...


class AdminPort:
    """Thin: every handler parses, calls one operation, and renders."""

    def __init__(
        self,
        *,
        operations: Operations,
        answerer: Answerer,
        neighbours: Neighbours,
        prefixes: Prefixes,
        families: Callable[[str], Family | None],
        sight: Sight,
        health: Health,
        guard: Guard,
        gate: Gate,
        config: dict[str, Any],
        prometheus: bool = True,
        consistency: Callable[[Mapping[str, Mapping[str, Any]]], dict[str, Any]] = lambda counts: {},
        more: Sequence[Routes] = (),
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        """`open_paths` are answered without a token, beside the probes."""
        self._operations = operations
        self._answerer = answerer
        self._neighbours = neighbours
        self._prefixes = prefixes
        self._families = families
        self._sight = sight
        self._health = health
        self._guard = guard
        self._gate = gate
        self._config = config
        self._prometheus = prometheus
        self._consistency = consistency
        self._more = tuple(more)
        self._open_paths = open_paths | {"/healthz", "/readyz"}

    def application(self) -> web.Application:
        """The routes of the admin API."""
        app = web.Application(middlewares=[middleware(self._guard, self._open_paths)], client_max_size=MAX_BODY)
        add = app.router.add_route
        add("GET", "/healthz", self._probe)
        add("GET", "/readyz", self._probe)
        if self._prometheus:
            add("GET", "/metrics", self._metrics)
        for routes in self._more:
            routes.add_to(app.router)
        add("GET", f"{PREFIX}/status", self._status)
        add("GET", f"{PREFIX}/config", self._show_config)
        add("GET", f"{PREFIX}/events", self._events)
        add("GET", f"{PREFIX}/environments", self._environments)
        add("POST", f"{PREFIX}/environments/{{id}}/activate", self._activate)
        add("GET", f"{PREFIX}/upstreams", self._upstreams)
        add("POST", f"{PREFIX}/upstreams/{{action:add|drain|remove}}", self._change_upstream)
        add("POST", f"{PREFIX}/explain", self._explain)
        add("POST", f"{PREFIX}/invalidate", self._invalidate)
        add("GET", f"{PREFIX}/entries/{{key}}", self._entry)
        add("DELETE", f"{PREFIX}/entries/{{key}}", self._delete_entry)
        add("GET", f"{PREFIX}/profiles", self._profiles)
        add("GET", f"{PREFIX}/profiles/{{name}}", self._profile)
        add("PUT", f"{PREFIX}/profiles/{{name}}", self._set_profile)
        add("POST", f"{PREFIX}/profiles/{{name}}/canary", self._canary)
        add("POST", f"{PREFIX}/profiles/{{name}}/promote", self._promote)
        add("POST", f"{PREFIX}/profiles/{{name}}/rollback", self._rollback)
        return app

    # --- seeing ---------------------------------------------------------------------------------------

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        answer = self._health.answer(request)
        assert answer is not None
        return answer

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        body, kind = await self._sight.prometheus(request.headers.get("Accept"))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _status(self, request: web.Request) -> web.StreamResponse:
        code, ready = self._health.readiness()
        status = await self._sight.status()
        status["consistency"] = self._consistency(status.get("consistency", {}))
        return web.json_response({"ready": code == 200, **ready, **status})

    async def _show_config(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._config)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Everything, or with `rate` at most that many requests a second: who looks on need not see each of them."""
        rate = request.query.get("rate")
        if rate is not None and not (rate.isascii() and rate.isdecimal()):
            raise ProxyError(400, "rate should be a whole number", code="invalid_value", param="rate")
        thinned = Thinned(int(rate)) if rate is not None else None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for event in self._sight.events():
                if thinned is not None and event.get("event") == "request" and not thinned.passes(float(event["at"])):
                    continue
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        return response

    async def _environments(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self._operations.environments()})

    async def _change_upstream(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "url", "reason")
        kind = f"upstream-{request.match_info['action']}"
        url, reason = bodies.text(asked, "url"), bodies.text(asked, "reason")
        await self._operations.change_upstream(kind, url, by=by(request), reason=reason)
        return web.json_response({"items": self._operations.upstreams()})

    async def _upstreams(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self._operations.upstreams()})

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.read(request, "endpoint", "body", "headers", "tenant", "full", "nearest")
        full, nearest = bodies.flag(asked, "full", False), bodies.flag(asked, "nearest", True)
        headers = bodies.headers(asked, "headers")
        tenant = None if asked.get("tenant") is None else bodies.text(asked, "tenant")
        endpoint = asked.get("endpoint", "chat")
        family = self._families(endpoint) if isinstance(endpoint, str) else None
        if family is None:
            raise ProxyError(400, f"unknown endpoint {endpoint!r}", code="unknown_endpoint", param="endpoint")
        body = asked.get("body")
        value = parse(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else json.dumps(body).encode())
        plan = self._answerer.plan(
            Ask(
                family=family,
                raw=b"",
                value=value,
                headers=tuple(headers.items()),
                controls=parse_controls(headers),
                tenant=self._tenant(tenant, tuple(headers.items())),
            )
        )
        told = explain.explain(plan, full=full)
        prefixes = warmth.explained(self._prefixes, plan)
        told["prefix"] = prefixes[0]
        for unit, prefix in zip(told.get("units", ()), prefixes, strict=False):
            unit["prefix"] = prefix
        if nearest:
            found = await self._neighbours.find(plan, full=full)
            told["nearest"] = None if found is None else msgspec.to_builtins(found)
        return web.json_response(told)

    def _tenant(self, named: str | None, headers: Headers) -> str:
        """The tenant that is named, else the one that a credential among the headers would have at the data port."""
        if named is not None:
            return named
        return self._gate.identify(headers).space if any(name in CREDENTIALS for name, _ in headers) else ""

    # --- entries --------------------------------------------------------------------------------------

    async def _entry(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        entry = await self._operations.entry(key)
        if entry is None:
            raise ProxyError(404, f"there is no entry {key}", code="unknown_entry", param="key")
        return web.json_response(shown(entry, full="full" in request.query))

    async def _delete_entry(self, request: web.Request) -> web.StreamResponse:
        await bodies.read(request)
        key = request.match_info["key"]
        done = await self._operations.invalidate("key", key, dry_run=False, by=by(request), reason="deleted")
        if not done.matched:
            raise ProxyError(404, f"there is no entry {key}", code="unknown_entry", param="key")
        return web.json_response({"deleted": done.matched})

    async def _invalidate(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "scope", "value", "tenant", "dry_run", "reason")
        scope, value = asked.get("scope"), asked.get("value", "")
        if not isinstance(scope, str):
            raise ProxyError(400, "scope should be text", code="invalid_value", param="scope")
        listed = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if value is not None and not isinstance(value, str) and not listed:
            raise ProxyError(400, "value should be text, or a list of texts", code="invalid_value", param="value")
        done = await self._operations.invalidate(
            scope,
            value or "",
            dry_run=bodies.flag(asked, "dry_run", False),
            by=by(request),
            reason=bodies.text(asked, "reason"),
            tenant=bodies.text(asked, "tenant"),
        )
        return web.json_response({name: item for name, item in msgspec.to_builtins(done).items() if item is not None})

    # --- profiles and environments --------------------------------------------------------------------

    async def _profiles(self, request: web.Request) -> web.StreamResponse:
        names = self._operations.profile_names()
        return web.json_response({"items": [profile_view(self._operations.profile(name)) for name in names]})

    async def _profile(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(profile_view(self._operations.profile(request.match_info["name"])))

    async def _set_profile(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "values", "match", "reason")
        profile = await self._operations.set_profile(
            request.match_info["name"],
            asked.get("values"),
            match=asked.get("match"),
            by=by(request),
            reason=bodies.text(asked, "reason"),
        )
        return web.json_response(profile_view(profile))

    async def _canary(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "values", "percent", "reason")
        profile = await self._operations.set_profile(
            request.match_info["name"],
            asked.get("values"),
            percent=asked.get("percent") or 0,
            by=by(request),
            reason=bodies.text(asked, "reason"),
        )
        return web.json_response(profile_view(profile))

    async def _promote(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "reason")
        profile = await self._operations.promote(
            request.match_info["name"], by=by(request), reason=bodies.text(asked, "reason")
        )
        return web.json_response(profile_view(profile))

    async def _rollback(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "reason")
        profile = await self._operations.rollback(
            request.match_info["name"], by=by(request), reason=bodies.text(asked, "reason")
        )
        return web.json_response(profile_view(profile))

    async def _activate(self, request: web.Request) -> web.StreamResponse:
        asked = await bodies.decision(request, "model", "reason")
        identity = request.match_info["id"]
        await self._operations.activate(
            identity, model=bodies.text(asked, "model"), by=by(request), reason=bodies.text(asked, "reason")
        )
        return web.json_response({"active": identity})


class Thinned:
    """Lets the first `rate` of each second pass."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._second = 0
        self._passed = 0

    def passes(self, at: float) -> bool:
        """`at` in seconds."""
        if int(at) != self._second:
            self._second, self._passed = int(at), 0
        self._passed += 1
        return self._passed <= self._rate


def shown(entry: Entry, *, full: bool) -> dict[str, Any]:
    """An entry for operators; what was asked and answered only where that is asked for."""
    view: dict[str, Any] = {
        "key": entry.key,
        "family": entry.family,
        "model": entry.model,
        "tenant": entry.tenant,
        "environment": entry.environment,
        "snapshot": entry.snapshot,
        "created": entry.created,
        "ttl": entry.ttl,
        "form": entry.answer.form,
        "size": entry.answer.size(),
        "usage": msgspec.structs.asdict(entry.usage),
        "tags": list(entry.tags),
        "sample": entry.sample,
        "seed": entry.seed,
        "verified": entry.verified,
        "instance": entry.instance,
    }
    if full:
        view["request"] = json.loads(entry.request)
        if entry.answer.form == "json":
            view["answer"] = json.loads(entry.answer.body)
        else:
            view["events"] = [event.data.decode("utf-8", "replace") for event in entry.answer.events]
    return view


def profile_view(profile: Profile) -> dict[str, Any]:
    """All versions; which is active, which is the canary and its percent."""
    return {
        "name": profile.name,
        "match": profile.match,
        "active": profile.active,
        "canary": {"version": profile.canary, "percent": profile.percent} if profile.canary is not None else None,
        "versions": [msgspec.to_builtins(version) for version in profile.versions],
    }
