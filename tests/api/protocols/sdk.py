"""The official clients as judges: they read our bytes and check every event against their own types."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import openai


def _answer(body: bytes, status: int) -> httpx2.MockTransport:
    kind = "application/json" if body.startswith(b"{") else "text/event-stream; charset=utf-8"
    return httpx2.MockTransport(lambda request: httpx2.Response(status, content=body, headers={"content-type": kind}))


def openai_reading(body: bytes, status: int = 200) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="k",
        base_url="http://127.0.0.1/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=_answer(body, status)),
        _strict_response_validation=True,
    )


def anthropic_reading(body: bytes, status: int = 200) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key="k",
        base_url="http://127.0.0.1",
        max_retries=0,
        http_client=httpx2.Client(transport=_answer(body, status)),
        _strict_response_validation=True,
    )


def openai_stream(name: str, body: bytes, model: str) -> list[Any]:
    client = openai_reading(body)
    if name == "responses":
        return list(client.responses.create(model=model, input="x", stream=True))
    if name == "chat":
        message = {"role": "user", "content": "x"}
        return list(client.chat.completions.create(model=model, messages=[message], stream=True))  # type: ignore[list-item]
    return list(client.completions.create(model=model, prompt="x", stream=True))


def anthropic_stream(body: bytes, model: str) -> list[Any]:
    client = anthropic_reading(body)
    message = {"role": "user", "content": "x"}
    return list(client.messages.create(model=model, max_tokens=9, messages=[message], stream=True))  # type: ignore[list-item]
