"""A bare aiohttp handler: hashes the body, and answers from a dictionary or from one GET of a Redis.

What a proxy on this server can't be faster than without leaving its way, whatever it checks or counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

from aiohttp import web
from redis.asyncio import Redis

from loadtest.null import answer


async def _serve(redis_url: str) -> None:
    entries: dict[str, bytes] = {}
    redis = Redis.from_url(redis_url) if redis_url else None
    body = answer()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        key = hashlib.sha256(await request.read()).hexdigest()
        found = entries.setdefault(key, body) if redis is None else await redis.get(key)
        if found is None and redis is not None:
            await redis.set(key, body)
            found = body
        return web.Response(body=found, content_type="application/json")

    server = await asyncio.get_running_loop().create_server(
        web.Server(handle, access_log=None), "127.0.0.1", 0, backlog=4096
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1] if len(sys.argv) > 1 else ""))
