"""Feeds a parser in given chunks and joins what comes out, so that a test compares whole messages."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from inference_grpc.core.request import Tool, ToolChoice
from inference_grpc.text.families import Family
from inference_grpc.text.output_parser import (
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolArgumentsPiece,
    ToolStartPiece,
    make_parser,
)

WEATHER = Tool(
    name="get_weather",
    description="Weather of a city",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "where": {"type": "object"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
WRITE_FILE = Tool(
    name="write_file",
    description="Write a file",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
)
PING = Tool(name="ping", description="No arguments", parameters={"type": "object", "properties": {}})
TOOLS = [WEATHER, WRITE_FILE, PING]


@dataclass
class Call:
    name: str
    arguments_json: str = ""
    id: str = ""

    @property
    def arguments(self) -> Any:
        return json.loads(self.arguments_json)


@dataclass
class Message:
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def join(pieces: list[Piece]) -> Message:
    message = Message()
    for piece in pieces:
        match piece:
            case TextPiece(text):
                assert text
                message.text += text
            case ReasoningPiece(text):
                assert text
                message.reasoning += text
            case ToolStartPiece(id, name):
                message.calls.append(Call(name, id=id))
            case ToolArgumentsPiece(text):
                assert text
                message.calls[-1].arguments_json += text
    return message


def parse(
    chunks: str | list[str],
    *,
    family: Family = "qwen3",
    tools: list[Tool] | None = None,
    choice: ToolChoice | None = None,
    thinking: bool = False,
    prompt_suffix: str = "<|im_start|>assistant\n",
    is_truncated: bool = False,
) -> Message:
    counter = itertools.count()
    parser = make_parser(
        family,
        TOOLS if tools is None else tools,
        choice or ToolChoice(),
        thinking,
        prompt_suffix,
        new_id=lambda: f"call_{next(counter)}",
    )
    assert parser is not None
    pieces: list[Piece] = []
    for chunk in [chunks] if isinstance(chunks, str) else chunks:
        pieces += parser.feed(chunk)
    return join(pieces + parser.finish(is_truncated=is_truncated))
