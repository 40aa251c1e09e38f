"""OpenAI's Responses: POST /v1/responses, and the token count of one.

A call may build on kept responses: when `parsed.needs_history`, the caller loads them and calls `expand` before the
request runs. `kept_items` and `writer.result()` are what a store keeps.
"""

from __future__ import annotations

from api.protocols.dialect import ErrorStyle
from api.protocols.openai import error_body
from api.protocols.responses.items import kept_items
from api.protocols.responses.parse import Parsed, expand, parse, parse_count
from api.protocols.responses.write import Writer, count_body, make_writer, response_id

__all__ = [
    "COUNT_PATHS",
    "ERROR_STYLE",
    "NAME",
    "PATHS",
    "Parsed",
    "Writer",
    "count_body",
    "error_body",
    "expand",
    "kept_items",
    "make_writer",
    "parse",
    "parse_count",
    "response_id",
]

NAME = "responses"
PATHS = frozenset({"/v1/responses"})
COUNT_PATHS = frozenset({"/v1/responses/input_tokens"})
ERROR_STYLE: ErrorStyle = "openai"
