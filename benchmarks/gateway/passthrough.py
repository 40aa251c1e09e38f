"""The bare thing to be measured against: an ASGI application that passes bytes on, and knows nothing of them."""

from __future__ import annotations

import os
from typing import Any

import aiohttp

UPSTREAM = os.environ["PASSTHROUGH_UPSTREAM"]
_session: aiohttp.ClientSession | None = None


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global _session
    if scope["type"] != "http":
        return
    if scope["path"] == "/health":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    if _session is None:
        _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = {"content-type": "application/json"}
    async with _session.post(UPSTREAM + scope["path"], data=body, headers=headers) as answer:
        kind = answer.headers["content-type"].encode()
        await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
        async for piece in answer.content.iter_any():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
