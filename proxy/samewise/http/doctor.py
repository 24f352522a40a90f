"""`GET /samewise/v1/doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import msgspec
from aiohttp import web

from samewise.pipeline.doctor import Doctor


class DoctorRoutes:
    """A part of the admin port."""

    def __init__(self, doctor: Doctor) -> None:
        self._doctor = doctor

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Its one path."""
        router.add_route("GET", "/samewise/v1/doctor", self._look)

    async def _look(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [msgspec.to_builtins(found) for found in await self._doctor.look()]})
