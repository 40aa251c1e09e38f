"""Anthropic Messages: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from api.protocols.dialect import ErrorStyle
from api.protocols.messages.parse import Parsed, parse, parse_count
from api.protocols.messages.write import Writer, context_exceeded, count_body, error_body, make_writer

__all__ = [
    "COUNT_PATHS",
    "ERROR_STYLE",
    "NAME",
    "PATHS",
    "Parsed",
    "Writer",
    "context_exceeded",
    "count_body",
    "error_body",
    "make_writer",
    "parse",
    "parse_count",
]

NAME = "messages"
PATHS = frozenset({"/v1/messages"})
COUNT_PATHS = frozenset({"/v1/messages/count_tokens"})
ERROR_STYLE: ErrorStyle = "anthropic"
