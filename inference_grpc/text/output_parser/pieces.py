"""What an output parser makes of generated text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStartPiece:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsPiece:
    """A fragment of the JSON object of arguments of the latest `ToolStartPiece`."""

    text: str


Piece = TextPiece | ReasoningPiece | ToolStartPiece | ToolArgumentsPiece
