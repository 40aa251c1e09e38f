"""Generated text to pieces: answer text, reasoning, tool calls, in the syntax of each model family.

    parser = make_parser(family, tools, tool_choice, thinking, prompt_suffix)   # None: the text is the answer as it is
    for text in generated:
        pieces = parser.feed(text)
    pieces = parser.finish()

One parser reads one choice. Argument fragments of a call concatenate to one JSON object; ids are unique.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from inference_grpc.core.request import Tool, ToolChoice
from inference_grpc.text.families import Family, reasoning_start
from inference_grpc.text.output_parser.hermes import HermesCallReader
from inference_grpc.text.output_parser.parser import OutputParser
from inference_grpc.text.output_parser.pieces import (
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolArgumentsPiece,
    ToolStartPiece,
)
from inference_grpc.text.output_parser.qwen3 import Qwen3CallReader
from inference_grpc.text.output_parser.readers import ReaderFactory

__all__ = [
    "OutputParser",
    "Piece",
    "ReasoningPiece",
    "TextPiece",
    "ToolArgumentsPiece",
    "ToolStartPiece",
    "make_parser",
    "offered_tools",
]

READERS: dict[Family, ReaderFactory] = {
    "qwen3": Qwen3CallReader,
    "hermes": HermesCallReader,
    "chatml": HermesCallReader,
}


def make_parser(
    family: Family,
    tools: list[Tool],
    tool_choice: ToolChoice,
    thinking: bool,
    prompt_suffix: str,
    *,
    new_id: Callable[[], str] | None = None,
) -> OutputParser | None:
    """A parser for one choice, or None where there is nothing to parse.

    `thinking`: the model may open `<think>` by itself; a prompt that ends in `<think>` has opened it in any case.
    `new_id` makes the ids of calls (tests pass their own).
    """
    offered = offered_tools(tools, tool_choice)
    reasoning = reasoning_start(thinking, prompt_suffix)
    if not offered and reasoning == "none":
        return None
    return OutputParser(
        tools={tool.name: tool for tool in offered},
        reader=READERS[family],
        reasoning=reasoning,
        is_parallel=tool_choice.parallel,
        new_id=new_id or _random_id,
    )


def offered_tools(tools: list[Tool], tool_choice: ToolChoice) -> list[Tool]:
    """The tools that may be called. Names given with any mode narrow them down; mode "none" offers none."""
    if tool_choice.mode == "none":
        return []
    if tool_choice.names:
        return [tool for tool in tools if tool.name in tool_choice.names]
    return tools


def _random_id() -> str:
    return "call_" + secrets.token_hex(12)
