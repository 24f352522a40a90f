"""Receipts over the admin port: show one, check the log, ask the backend again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from samewise.core.entry import Entry
from samewise.core.errors import ProxyError
from samewise.core.receipts import Line, describe
from samewise.http import asked as bodies
from samewise.pipeline.operations import Operations
from samewise.pipeline.receipts import Log, replay
from samewise.pipeline.verify.recompute import Run

PREFIX = "/samewise/v1/receipts"


class ReceiptRoutes:
    """`GET /samewise/v1/receipts/{id}`, `GET .../receipts/check`, `POST .../receipts/{id}/replay {"request"?}`.

    `log` is None where receipts are off.
    """

    def __init__(self, log: Log | None, operations: Operations, run: Callable[[Entry], Awaitable[Run]]) -> None:
        self._log = log
        self._operations = operations
        self._run = run

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_route("GET", f"{PREFIX}/check", self._check)
        router.add_route("GET", f"{PREFIX}/{{id}}", self._show)
        router.add_route("POST", f"{PREFIX}/{{id}}/replay", self._replay)

    async def _check(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(msgspec.to_builtins(await self._kept().check()))

    async def _show(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(describe(await self._line(request)))

    async def _replay(self, request: web.Request) -> web.StreamResponse:
        line = await self._line(request)
        asked: dict[str, Any] | None = (await bodies.read(request, "request")).get("request")
        if asked is not None and not isinstance(asked, dict):
            raise ProxyError(400, "request should be the body that was asked", code="invalid_value", param="request")
        key = line.receipt.key
        entry = await self._operations.entry(key) if key is not None else None
        return web.json_response((await replay(line, entry, self._run, asked)).plain())

    async def _line(self, request: web.Request) -> Line:
        identity = request.match_info["id"]
        line = await self._kept().get(identity)
        if line is None:
            raise ProxyError(404, f"there is no receipt {identity}", code="unknown_receipt", param="id")
        return line

    def _kept(self) -> Log:
        if self._log is None:
            raise ProxyError(
                404, "receipts are off; set [receipts] enabled = true, and a secret", code="receipts_disabled"
            )
        return self._log
