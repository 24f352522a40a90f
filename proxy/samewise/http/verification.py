"""What recomputation found, and recomputing what an operator chooses."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from samewise.core.divergence import Divergence
from samewise.core.errors import ProxyError
from samewise.http import asked as bodies
from samewise.pipeline.operations import Operations
from samewise.pipeline.verify.book import Book
from samewise.pipeline.verify.judge import Finding
from samewise.pipeline.verify.verifier import Verifier
from samewise.ports import StoreUnavailable

PREFIX = "/samewise/v1"
MOST = 10_000
MOST_KEYS = 100
WAIT = 120.0
"""Seconds that an operator's verification may take before its answer says that it goes on."""


class VerifyRoutes:
    """`GET /samewise/v1/divergences?limit=`, `/divergences/{id}`, and `POST /samewise/v1/verify {"keys"}`."""

    def __init__(self, verifier: Verifier, book: Book, operations: Operations) -> None:
        self._verifier = verifier
        self._book = book
        self._operations = operations

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_route("GET", f"{PREFIX}/divergences", self._list)
        router.add_route("GET", f"{PREFIX}/divergences/{{id}}", self._show)
        router.add_route("POST", f"{PREFIX}/verify", self._verify)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("limit", "50")
        if not text.isdecimal() or not 1 <= int(text) <= MOST:
            raise ProxyError(
                400, f"limit should be from 1 to {MOST}, not {text!r}", code="invalid_value", param="limit"
            )
        try:
            found = await self._book.latest(int(text))
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure
        return web.json_response({"items": [msgspec.to_builtins(each.brief()) for each in found]})

    async def _show(self, request: web.Request) -> web.StreamResponse:
        identity = request.match_info["id"]
        try:
            found = await self._book.get(identity)
        except StoreUnavailable as failure:
            raise _store_down(failure) from failure
        if found is None:
            raise ProxyError(
                404,
                f"there is no divergence {identity}; 'samewise divergences list' shows what there is",
                code="unknown_divergence",
                param="id",
            )
        return web.json_response(shown(found))

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        """Every entry is recomputed now, before what traffic offers; the answer has what came of each."""
        asked = await bodies.read(request, "keys", "key")
        if len(asked) != 1:
            raise ProxyError(400, 'the body should be {"keys": ["..."]}', code="invalid_value", param="keys")
        keys = asked["keys"] if "keys" in asked else [asked["key"]]
        if (
            not isinstance(keys, list)
            or not 0 < len(keys) <= MOST_KEYS
            or not all(isinstance(key, str) for key in keys)
        ):
            raise ProxyError(400, f"keys should be 1 to {MOST_KEYS} keys", code="invalid_value", param="keys")
        told = await asyncio.gather(*(self._one(key) for key in keys))
        return web.json_response({"items": told})

    async def _one(self, key: str) -> dict[str, Any]:
        entry = await self._operations.entry(key)
        if entry is None:
            return {"key": key, "verdict": "inconclusive", "why": "there is no such entry"}
        try:
            async with asyncio.timeout(WAIT):
                return told(key, await self._verifier.verify(entry))
        except TimeoutError:
            return {"key": key, "verdict": "inconclusive", "why": "it waits for room on the upstreams"}
        except asyncio.QueueFull:
            return {"key": key, "verdict": "inconclusive", "why": "too many wait already: see [verify] queue"}


def told(key: str, finding: Finding) -> dict[str, Any]:
    """A finding as JSON values."""
    found = finding.comparison
    return {
        "key": key,
        "verdict": finding.outcome,
        "why": finding.why,
        "part": found.part,
        "position": found.position,
        "unit": found.unit,
        "gap": found.gap,
        "layer": finding.layer,
        "candidates": msgspec.to_builtins(found.candidates),
        "odd": list(finding.odd),
        "instance": finding.shown and (finding.shown.instance or finding.shown.member),
    }


def shown(found: Divergence) -> dict[str, Any]:
    """A divergence as JSON values."""
    view: dict[str, Any] = msgspec.to_builtins(found)
    for name, side in (("cached", found.cached), ("recomputed", found.recomputed)):
        view[name] = {"text": side.text, "finish_reason": side.finish_reason, **view[name]}
    return view


def _store_down(failure: StoreUnavailable) -> ProxyError:
    return ProxyError(
        503, f"the store can't be reached ({failure.kind}); try again when it is back", code="store_unavailable"
    )
