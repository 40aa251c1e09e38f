"""What both contenders may stand in front of: an OpenAI-compatible server that answers at a set pace.

The prompt orders it: `PACE:50 TOKENS:128`, as the scripted engine understands it too.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

from aiohttp import web

ORDER = re.compile(r"(PACE|TOKENS):(\d+)")
FIRST_TOKEN_S = 0.02


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    orders = dict(ORDER.findall(body["messages"][-1]["content"]))
    tokens = int(orders.get("TOKENS", 16))
    pace_s = 1 / int(orders["PACE"]) if "PACE" in orders else 0.0
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": tokens + 20}
    if not body.get("stream"):
        message = {"role": "assistant", "content": " word" * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    head = b'data: {"id":"chatcmpl-x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    due = asyncio.get_running_loop().time() + FIRST_TOKEN_S
    for index in range(tokens):
        if pace_s:
            await asyncio.sleep(max(0.0, due + index * pace_s - asyncio.get_running_loop().time()))
        await reply.write(head + b'"delta":{"content":" word"},"finish_reason":null}]}\n\n')
    await reply.write(head + b'"delta":{},"finish_reason":"stop"}]}\n\n')
    await reply.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
    return reply


def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
