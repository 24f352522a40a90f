"""An answer that has begun: its head is here, its body comes as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp

from samewise.core.answer import DONE, Event, Headers
from samewise.ports import UpstreamFailed
from samewise.upstream.decode import Undecodable, decoder
from samewise.upstream.options import Timeouts
from samewise.upstream.silence import Silence
from samewise.upstream.sse import EventTooLarge, Parser

_LAST_CHUNK = 0.05
"""Seconds that a finished stream may take to end its HTTP message before its connection is given up."""


class HttpExchange:
    """Implements `ports.Exchange` over one aiohttp response.

    Nothing is read ahead of the reader but what the connection's buffer holds (about 128 KiB), so a
    reader that stops stops the upstream. `ended` is told once, when it is over: with the failure, or None.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        *,
        headers: Headers,
        member: str,
        environment: str | None,
        instance: str | None,
        concurrency: int,
        started: float,
        timeouts: Timeouts,
        max_event: int,
        ended: Callable[[UpstreamFailed | None], None],
    ) -> None:
        self.status = response.status
        self.headers = headers
        self.environment = environment
        self.member = member
        self.instance = instance
        self.concurrency = concurrency
        self.lost = ""
        self._response = response
        self._timeouts = timeouts
        self._silence = Silence(response.content, timeouts, started)
        self._max_event = max_event
        self._ended: Callable[[UpstreamFailed | None], None] | None = ended
        self._whole = False

    @property
    def streaming(self) -> bool:
        """True where the content type is `text/event-stream`."""
        return self._response.content_type == "text/event-stream"

    async def read(self) -> bytes:
        """The whole body. Raises UpstreamFailed where it was cut or fell silent."""
        return b"".join([piece async for piece in self.chunks()])

    async def bursts(self) -> AsyncIterator[Sequence[Event]]:
        """The data events as they come. A stream that ends within an event was cut: raises UpstreamFailed.

        Only a last `[DONE]` may lack its blank line.
        """
        parser = Parser(self._max_event)
        async for piece in self.chunks():
            try:
                events = parser.feed(piece)
            except EventTooLarge as error:
                if error.events:
                    yield error.events
                raise self._fail("protocol", str(error)) from error
            if events:
                self._whole = events[-1].data == DONE
                yield events
        if parser.unterminated():
            last = parser.feed(b"\n\n")
            if [event.data for event in last] != [DONE]:
                raise self._fail("cut", "the upstream's stream ended in the middle of an event")
            yield last

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, its content codings taken off. Raises UpstreamFailed."""
        try:
            coding = decoder(self._response.headers.get("Content-Encoding"))
            while data := await self._next():
                if coding is None:
                    yield data
                else:
                    for piece in coding.feed(data):
                        yield piece
            if coding is not None:
                coding.finish()
        except Undecodable as error:
            raise self._fail("protocol", str(error)) from error
        self._end(None)

    async def _next(self) -> bytes:
        """The next bytes, b"" at the end of the message."""
        try:
            return await self._silence.read()
        except TimeoutError as error:
            raise self._fail("timeout", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._fail("cut", f"the upstream's answer was cut: {error}") from error

    async def close(self) -> None:
        """Give the connection back, or end it where the answer is not over, which stops the upstream's work."""
        if self._whole and not self._response.content.at_eof():
            try:
                async with asyncio.timeout(_LAST_CHUNK):
                    while await self._response.content.readany():
                        pass
            except (TimeoutError, aiohttp.ClientError, OSError):
                pass
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()
        self._end(None)

    def _fail(self, kind: str, message: str) -> UpstreamFailed:
        failure = UpstreamFailed(kind, message, sent=True)
        self._response.close()
        self._end(failure)
        return failure

    def _end(self, failure: UpstreamFailed | None) -> None:
        self._silence.end()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(failure)
