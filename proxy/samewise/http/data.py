"""The data port: what applications see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpVersion11
from multidict import CIMultiDict

from samewise.core import headers, request
from samewise.core.answer import Headers
from samewise.core.controls import parse_controls, with_query
from samewise.core.errors import ProxyError
from samewise.core.families.contract import Family
from samewise.core.reason import Reason
from samewise.core.tenants import Key
from samewise.http import body, models, render, server
from samewise.http.auth import Caller, Gate
from samewise.http.framing import MAX_REMEMBERED
from samewise.http.health import Health
from samewise.http.hot import Hot, HotAnswers
from samewise.http.question import Question, question
from samewise.pipeline.account import Account
from samewise.pipeline.answer import Answerer
from samewise.pipeline.ask import Ask
from samewise.pipeline.content import content_of
from samewise.pipeline.lane import Lane
from samewise.pipeline.reply import upstream_error
from samewise.pipeline.source import Reply
from samewise.ports import Call, Clock, Engine, Exchange, Observer, UpstreamFailed

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ERROR = 400
GONE = 499
"""Nobody is there to get an answer (nginx's number for it); it never goes on the wire."""


class Plain(NamedTuple):
    """A request that is all there: what it is remembered by, its body, and the generation at its door."""

    question: Question
    raw: bytes
    generation: int


class DataPort:
    """One handler for every path. Nothing that it meets ends in anything but an answer."""

    def __init__(
        self,
        *,
        families: Mapping[str, Family],
        answerer: Answerer,
        engine: Engine,
        gate: Gate,
        health: Health,
        observer: Observer,
        clock: Clock,
        request_ids: Callable[[], str],
        bounds: body.Bounds,
        lane: Lane,
        max_requests: int = 10_000,
        ping: float = 0.0,
        hot: HotAnswers | None = None,
        content: bool = False,
    ) -> None:
        """`content`: whether observers are told what was asked and answered."""
        self._families = families
        self._answerer = answerer
        self._engine = engine
        self._gate = gate
        self._health = health
        self._observer = observer
        self._clock = clock
        self._request_ids = request_ids
        self._bounds = bounds
        self._lane = lane
        self._max_requests = max_requests
        self._ping = ping
        self._hot = hot
        self._content = content
        self._running = 0

    async def handle(self, incoming: web.BaseRequest) -> web.StreamResponse | render.Written:
        """The response to one request."""
        if (probe := self._health.answer(incoming)) is not None:
            probe.headers["x-request-id"] = self._request_ids()
            probe.headers["x-samewise-cache"] = "BYPASS" if probe.status < _ERROR else "ERROR"
            return probe
        family = self._families.get(incoming.path) if incoming.method == "POST" else None
        plain = await self._plain(incoming) if family is not None else None
        if plain is not None and (known := await self._known(incoming, plain)) is not None:
            return render.Written(known)
        fields: Headers = tuple((name.lower(), value) for name, value in incoming.headers.items())
        account = Account(
            observer=self._observer,
            clock=self._clock,
            trace=self._observer.begin(dict(fields), family.name if family else "other"),
            request_id=self._request_ids(),
            endpoint=family.name if family else "other",
        )
        self._running += 1
        try:
            response = await self._respond(incoming, family, fields, account, plain)
            account.close(response.status)
            return response
        except (asyncio.CancelledError, ConnectionError):
            account.close(GONE, cancelled=True)
            raise
        finally:
            self._running -= 1
            account.close(500)

    async def _respond(
        self,
        incoming: web.BaseRequest,
        family: Family | None,
        fields: Headers,
        account: Account,
        plain: Plain | None,
    ) -> web.StreamResponse:
        try:
            if self._running > self._max_requests:
                raise too_busy()
            body.framed(incoming)
            caller = self._gate.enter(fields)
            account.tenant = caller.tenant
            if family is None:
                return await self._pass_through(incoming, fields, account, caller)
            raw = plain.raw if plain is not None else await body.read(incoming, self._bounds)
            ask = await self._read(incoming, family, fields, account, raw=raw, caller=caller)
            if self._content:
                account.content = content_of(ask)
            model = ask.value.get("model")
            self._gate.check_model(caller.key, model if isinstance(model, str) else "")
            reply = await self._answerer.answer(ask, account.marks)
        except ProxyError as error:
            refusal = render.refusal(error, account)
            if body.unasked(incoming):
                refusal.force_close()
            return refusal
        if self._content:
            account.content = content_of(ask, reply.sources)
        try:
            if plain is not None and not caller.limited:
                self._offer(incoming, plain, reply, account)
            return await render.send(incoming, reply, account, ping=self._ping)
        finally:
            reply.close()

    async def _known(self, incoming: web.BaseRequest, plain: Plain) -> bytes | None:
        """The whole response, where the same was answered with a hit that is still one."""
        hot = self._hot
        if hot is None or not incoming.keep_alive:
            return None
        known = hot.by_body(plain.question)
        if known is None:
            return await hot.by_store(plain.question)
        server.remember(incoming, known[0])
        return known[1]

    async def _plain(self, incoming: web.BaseRequest) -> Plain | None:
        """What a hit may be remembered by; None for requests that are not plain, large, or never all there."""
        if self._hot is None or incoming.version != HttpVersion11 or not incoming.body_exists:
            return None
        if (incoming.content_length or 0) <= MAX_REMEMBERED and "Expect" not in incoming.headers:
            await body.there(incoming, self._bounds.silence)
        raw = body.at_once(incoming, self._bounds.size)
        if raw is None:
            return None
        return Plain(question(incoming.raw_path, incoming.headers.items(), raw), raw, self._hot.generation)

    def _offer(self, incoming: web.BaseRequest, plain: Plain, reply: Reply, account: Account) -> None:
        """Remember a hit of the first tier, so that it is given again the short way."""
        hot, marks, entry, plan = self._hot, account.marks, reply.entry, reply.plan
        if hot is None or entry is None or plan is None or marks.tier != hot.tier or not incoming.keep_alive:
            return
        if plan.controls.max_age is not None or hot.generation != plain.generation:
            return
        repeat = self._observer.repeats(account.record(reply.status))
        if repeat is None:
            return
        answer = Hot(
            head=render.hot_head(reply, account),
            payload=render.hot_payload(reply),
            entry=entry,
            plan=plan,
            generation=plain.generation,
            repeat=repeat,
        )
        hot.remember_body(plain.question, plain.raw, answer)
        server.remember(incoming, answer)

    async def _read(
        self,
        incoming: web.BaseRequest,
        family: Family,
        fields: Headers,
        account: Account,
        *,
        raw: bytes,
        caller: Caller,
    ) -> Ask:
        kind = incoming.headers.get("Content-Type")
        if kind is not None and "json" not in kind.lower():
            raise ProxyError(415, f"the content type must be application/json, not {kind}", code="unsupported_media")
        if (coding := body.coding(incoming)) is not None:
            known = ", ".join(sorted(body.CODINGS))
            raise ProxyError(
                415,
                f"the content coding must be one of {known}, not {coding}",
                code="unsupported_coding",
                headers=(("accept-encoding", known),),
            )
        value = await self._lane.run(len(raw), request.parse, raw)
        return Ask(
            family=family,
            raw=raw,
            value=value,
            headers=self._gate.travelling(fields),
            controls=with_query(parse_controls(joined(fields)), incoming.query_string),
            tenant=caller.space,
            trace=account.trace,
            query=incoming.query_string,
        )

    async def _pass_through(
        self, incoming: web.BaseRequest, fields: Headers, account: Account, caller: Caller
    ) -> web.StreamResponse:
        """What is not of a cached family goes as it is, and comes back as it is."""
        account.marks.reason = Reason.UNCACHED_PATH
        upload = body.Upload(incoming, self._bounds)
        sent: bytes | AsyncIterator[bytes] = b""
        limited = caller.key if caller.key is not None and caller.key.restricted else None
        if limited is not None and (named := models.named(incoming.path)) is not None:
            self._gate.check_model(limited, named)
        if limited is not None and incoming.method not in _SAFE:
            sent = await body.read(incoming, self._bounds)
            self._gate.check_model(limited, _model(sent))
        elif incoming.body_exists:
            sent = upload.pieces()
        coding = body.coding(incoming)
        call = Call(
            method=incoming.method,
            path=_target(incoming),
            body=sent,
            headers=(
                *headers.of_request(self._gate.travelling(fields)),
                *([("content-encoding", coding)] if coding is not None else ()),
            ),
        )
        account.marks.forward = "bypass"
        try:
            exchange = await self._engine.open(call)
        except UpstreamFailed as failure:
            raise upload.failure or upstream_error(failure) from failure
        try:
            account.marks.environment, account.marks.member = exchange.environment, exchange.member
            account.marks.answered = exchange.status
            own = render.marks(account, exchange.status)
            if limited is not None and incoming.method == "GET" and models.is_list(incoming.path):
                return await self._models(exchange, limited, account)
            response = web.StreamResponse(status=exchange.status)
            response.headers.extend((*headers.of_response(exchange.headers), *headers.size(exchange.headers), *own))
            await response.prepare(incoming)
            account.first_byte()
            async for chunk in exchange.chunks():
                await response.write(chunk)
            await response.write_eof()
            return response
        except UpstreamFailed:
            account.marks.reason = Reason.TRUNCATED
            if incoming.transport is not None:
                incoming.transport.close()
            return response
        finally:
            await exchange.close()

    @staticmethod
    async def _models(exchange: Exchange, key: Key, account: Account) -> web.Response:
        """The models of the list that the key may use. Raises ProxyError."""
        try:
            raw = await exchange.read()
        except UpstreamFailed as failure:
            raise upstream_error(failure) from failure
        fields = (*headers.of_response(exchange.headers), *render.marks(account, exchange.status))
        told = models.allowed(raw, key) if exchange.status < _ERROR else raw
        account.first_byte()
        return web.Response(status=exchange.status, headers=CIMultiDict(fields), body=told)


def _target(incoming: web.BaseRequest) -> str:
    """Path and query, also of a target in absolute form (RFC 9112 section 3.2.2), whose host is nobody's to choose."""
    target = incoming.raw_path
    if not target.startswith("/"):
        parts = urlsplit(target)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "") if parts.netloc else ""
    if not target.startswith("/"):
        raise ProxyError(400, "the request target should be a path", code="bad_target")
    return target


def _model(raw: bytes) -> str:
    """The model that the body names; empty where it names none that can be read."""
    try:
        model = request.parse(raw).get("model")
    except ProxyError:
        return ""
    return model if isinstance(model, str) else ""


def too_busy() -> ProxyError:
    """503: as many requests as can be held are being answered."""
    return ProxyError(
        503,
        "too many requests are being answered; try again in a second, or see [server] max_requests",
        code="overloaded",
        reason=Reason.TOO_BUSY,
        headers=(("retry-after", "1"),),
    )


def joined(fields: Headers) -> dict[str, str]:
    """Fields by name; several lines of one are joined by commas (RFC 9110 section 5.3)."""
    values: dict[str, str] = {}
    for name, value in fields:
        values[name] = f"{values[name]}, {value}" if name in values else value
    return values
