"""A bare aiohttp relay: sends every body on and gives back what comes, and does nothing else.

What one more hop costs on this server and this client, whatever a proxy does beside it.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web


async def _serve(upstream: str) -> None:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        target = upstream.removesuffix("/v1") + request.path_qs
        async with session.post(target, data=body, headers={"Content-Type": "application/json"}) as answer:
            if answer.content_type != "text/event-stream":
                return web.Response(body=await answer.read(), content_type=answer.content_type)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    server = await asyncio.get_running_loop().create_server(
        web.Server(handle, access_log=None), "127.0.0.1", 0, backlog=4096
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1]))
