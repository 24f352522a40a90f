"""Whether the process lives, and whether it can answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from samewise.core.errors import ProxyError
from samewise.ports import Engine, Store

ALIVE, READY = "/healthz", "/readyz"
_REFUSED = {"Allow": "GET, HEAD", "Cache-Control": "no-store"}


class Health:
    """`/healthz` asks nothing but the process. `/readyz` is 200 while requests can be answered, degraded or not.

    `alone`: only from entries, as in the mode `frozen`, so that it takes no upstream.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        extra: Sequence[Callable[[], dict[str, object]]] = (),
        alone: bool = False,
    ) -> None:
        self._store = store
        self._engine = engine
        self._extra = extra
        self._alone = alone
        self.draining = False

    def answer(self, incoming: web.BaseRequest) -> web.Response | None:
        """The response, where it is one of these two paths that is asked for."""
        path = incoming.path
        if path not in {ALIVE, READY}:
            return None
        if incoming.method not in {"GET", "HEAD"}:
            refusal = ProxyError(405, "only GET and HEAD are answered here", code="method_not_allowed")
            return web.Response(status=405, body=refusal.body(), content_type="application/json", headers=_REFUSED)
        if path == ALIVE:
            return _json(200, {"status": "alive"})
        status, body = self.readiness()
        return _json(status, body)

    def readiness(self) -> tuple[int, dict[str, object]]:
        """An HTTP status and what to show: each part with its state, and what is degraded by name."""
        stores = {row.name: "ok" if row.available else row.detail or "unavailable" for row in self._store.status()}
        upstreams = {
            member.url: "ok" if member.healthy else member.error or "unhealthy" for member in self._engine.members()
        }
        degraded = [f"store:{name}" for name, state in stores.items() if state != "ok"]
        degraded += [f"upstream:{url}" for url, state in upstreams.items() if state != "ok"]
        parts: dict[str, object] = {"stores": stores, "upstreams": upstreams}
        for extra in self._extra:
            parts.update(extra())
        if self.draining:
            return 503, {"status": "draining", "degraded": degraded, **parts}
        if "ok" not in upstreams.values() and not self._alone:
            return 503, {"status": "unavailable", "degraded": degraded, **parts}
        return 200, {"status": "degraded" if degraded else "ready", "degraded": degraded, **parts}


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
