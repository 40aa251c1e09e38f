"""The incremental parser: answer text, reasoning and tool calls out of generated text, in any chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inference_grpc.core.request import Tool
from inference_grpc.text.families import CALL_OPEN, THINK_CLOSE, THINK_OPEN, ReasoningStart
from inference_grpc.text.output_parser.pieces import Piece, ReasoningPiece, TextPiece, ToolStartPiece
from inference_grpc.text.output_parser.readers import CallReader, ReaderFactory, begun_length

State = Literal["start", "reasoning", "text", "call", "over"]


class OutputParser:
    """Feed it the text as it is generated, in chunks of any size; then `finish`. It never raises.

    A tag never shows, not even in part; text that only begins like one is held until that is settled. White space that
    only sets a tag apart (before a call, between calls, around reasoning) is dropped. A call that cannot be read, or
    of a tool that was not offered, comes out as the text it is.
    """

    def __init__(
        self,
        *,
        tools: dict[str, Tool],
        reader: ReaderFactory,
        reasoning: ReasoningStart,
        is_parallel: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._tools = tools
        self._new_reader = reader
        self._is_parallel = is_parallel
        self._new_id = new_id
        self._state: State = {"none": "text", "optional": "start", "open": "reasoning"}[reasoning]  # type: ignore[assignment]
        self._buffer = ""
        self._skips_space = reasoning == "open"
        self._call: CallReader | None = None
        self._space_before_call = ""
        self._has_called = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed last stands inside reasoning: its tokens count as reasoning tokens."""
        return self._state == "reasoning"

    @property
    def is_complete(self) -> bool:
        """Whether all has been said that may be (one call, where parallel calls were ruled out): stop generating."""
        return self._state == "over"

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self, *, is_truncated: bool = False) -> list[Piece]:
        """What was held back. `is_truncated`: the output was cut by a limit; an unfinished call is left unfinished."""
        pieces: list[Piece] = []
        while self._call is not None:
            self._take_call(self._call.finish(is_truncated=is_truncated), self._call, pieces)
            while self._step(pieces):
                pass
        held, self._buffer = self._buffer, ""
        match self._state:
            case "reasoning" if not self._skips_space:
                _say(ReasoningPiece, held, pieces)
            case "start" | "text" if not self._skips_space:
                _say(TextPiece, held, pieces)
        self._state = "over"
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Reads the buffer up to the next turn; False when it needs more text."""
        if self._skips_space:
            self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        self._skips_space = False
        match self._state:
            case "start":
                return self._read_start()
            case "reasoning":
                return self._read_reasoning(pieces)
            case "text":
                return self._read_text(pieces)
            case "call":
                return self._read_call(pieces)
            case "over":
                self._buffer = ""
                return False

    def _read_start(self) -> bool:
        bare = self._buffer.lstrip()
        if bare.startswith(THINK_OPEN):
            self._buffer = bare[len(THINK_OPEN) :]
            self._skips_space = True
            self._state = "reasoning"
        elif THINK_OPEN.startswith(bare):
            return False
        else:
            self._state = "text"
        return True

    def _read_reasoning(self, pieces: list[Piece]) -> bool:
        said, is_closed = self._split_at(THINK_CLOSE)
        _say(ReasoningPiece, said, pieces)
        if is_closed:
            self._buffer = self._buffer.lstrip()[len(THINK_CLOSE) :]
            self._skips_space = True
            self._state = "text"
        return is_closed

    def _read_text(self, pieces: list[Piece]) -> bool:
        if not self._tools:
            _say(TextPiece, self._buffer, pieces)
            self._buffer = ""
            return False
        said, is_call = self._split_at(CALL_OPEN)
        _say(TextPiece, said, pieces)
        if is_call:
            bare = self._buffer.lstrip()
            self._space_before_call = self._buffer[: len(self._buffer) - len(bare)]
            self._buffer = bare[len(CALL_OPEN) :]
            self._call = self._new_reader(self._tools, self._new_id)
            self._state = "call"
        return is_call

    def _split_at(self, tag: str) -> tuple[str, bool]:
        """Takes off the buffer the text before `tag`, or all that cannot belong to it; space stays with the tag."""
        at = self._buffer.find(tag)
        end = at if at >= 0 else len(self._buffer) - begun_length(self._buffer, tag)
        said = self._buffer[:end].rstrip()
        self._buffer = self._buffer[len(said) :]
        return said, at >= 0

    def _read_call(self, pieces: list[Piece]) -> bool:
        assert self._call is not None
        text, self._buffer = self._buffer, ""
        return self._take_call(self._call.feed(text), self._call, pieces)

    def _take_call(self, said: list[Piece], call: CallReader, pieces: list[Piece]) -> bool:
        """Hands on what the reader said; True when the call is over and the text behind it is in the buffer."""
        pieces += said
        if any(isinstance(piece, ToolStartPiece) for piece in said):
            self._has_called = True
        if call.outcome == "reading":
            return False
        self._call = None
        if call.outcome == "not_a_call":
            # The space went unsaid as long as this looked like a call.
            _say(TextPiece, self._space_before_call + CALL_OPEN, pieces)
        self._buffer = call.rest
        self._skips_space = call.outcome == "called"
        self._state = "text" if self._is_parallel or not self._has_called else "over"
        return True


def _say(kind: type[TextPiece] | type[ReasoningPiece], text: str, pieces: list[Piece]) -> None:
    if text:
        pieces.append(kind(text))
