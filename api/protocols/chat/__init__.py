"""OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from api.protocols.chat.schema import BODY
from api.protocols.chat.translate import to_request
from api.protocols.chat.writer import ChatWriter
from api.protocols.decoding import decode
from api.protocols.dialect import ErrorStyle
from api.protocols.openai import error_body
from api.protocols.request import GenerationRequest

__all__ = ["ERROR_STYLE", "NAME", "PATHS", "ParsedChat", "error_body", "make_writer", "parse"]

NAME: Final[str] = "chat"
PATHS: Final = frozenset({"/v1/chat/completions"})
ERROR_STYLE: Final[ErrorStyle] = "openai"


@dataclass(frozen=True, slots=True)
class ParsedChat:
    requests: Sequence[GenerationRequest]
    include_usage: bool
    # The caller offered the older `functions`, so it wants `function_call` in the answer.
    is_legacy: bool


def parse(body: bytes) -> ParsedChat:
    fields = decode(BODY, body)
    options = fields.stream_options
    return ParsedChat(
        requests=(to_request(fields),),
        include_usage=bool(options and options.include_usage),
        is_legacy=bool(fields.functions),
    )


def make_writer(parsed: ParsedChat, *, request_id: UUID, model: str, created: int) -> ChatWriter:
    request = parsed.requests[0]
    return ChatWriter(
        id=f"chatcmpl-{request_id.hex}",
        model=model,
        created=created,
        is_stream=request.stream,
        choices=request.n,
        include_usage=parsed.include_usage,
        is_legacy=parsed.is_legacy,
        with_logprobs=request.logprobs,
    )
