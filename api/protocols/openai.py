"""Shapes that OpenAI's dialects share: the error object, usage counts, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from api.errors import row_of
from inference_grpc.events import TokenLogprob, Usage

# What a reader of the stream may see between frames; clients skip it.
KEEPALIVE = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


def error_body(*, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def context_exceeded(prompt_tokens: int, max_tokens: int, context_tokens: int) -> str:
    """In OpenAI's own words: clients know by them that a conversation has to be shortened."""
    return (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the messages, {max_tokens} in the completion). "
        "Please reduce the length of the messages or completion."
    )


def error_frame(code: str, message: str) -> bytes:
    """The error event inside a started stream."""
    row = row_of(code)
    error = {"message": message, "type": row.openai_type, "param": None, "code": row.openai_code}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def logprob_entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The `content` list of Chat's (and Responses') log-probabilities."""
    return [
        {
            "token": entry.token,
            "bytes": list(entry.token_bytes),
            "logprob": entry.logprob,
            "top_logprobs": [
                {"token": top.token, "bytes": list(top.token_bytes), "logprob": top.logprob} for top in entry.top
            ],
        }
        for entry in logprobs
    ]
