"""The incremental parser: answer text, reasoning and tool calls out of generated text, in any chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inference_grpc.core.request import Tool
from inference_grpc.text.families import CALL_OPEN, THINK_CLOSE, THINK_OPEN, ReasoningStart
from inference_grpc.text.output_parser.pieces import Piece, ReasoningPiece, TextPiece, ToolStartPiece
from inference_grpc.text.output_parser.readers import CallReader, ReaderFactory, begun_length

# "closed": behind reasoning, before the answer.
State = Literal["start", "reasoning", "closed", "text", "call", "over"]


class OutputParser:
    """Feed it the text as it is generated, in chunks of any size; then `finish`. It never raises.

    A tag never shows, not even in part; text that only begins like one is held until that is settled. White space that
    only sets a tag apart (before a call, between calls, around reasoning) is dropped. A call that cannot be read, or
    of a tool that was not offered, comes out as the text it is. A call inside reasoning ends it; a second `</think>` is
    dropped.
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
        self._calls_from_reasoning = False  # the call that is being read
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
            case "start" | "closed" | "text" if not self._skips_space:
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
            case "closed":
                return self._read_closed()
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
        said, tag = self._split_at(THINK_CLOSE, *([CALL_OPEN] if self._tools else []))
        _say(ReasoningPiece, said, pieces)
        if tag == CALL_OPEN:
            self._begin_call()
        elif tag == THINK_CLOSE:
            self._buffer = self._buffer.lstrip()[len(THINK_CLOSE) :]
            self._skips_space = True
            self._state = "closed"
        return tag is not None

    def _read_closed(self) -> bool:
        if self._buffer.startswith(THINK_CLOSE):
            self._buffer = self._buffer[len(THINK_CLOSE) :]
            self._skips_space = True
        elif THINK_CLOSE.startswith(self._buffer):
            return False
        else:
            self._state = "text"
        return True

    def _read_text(self, pieces: list[Piece]) -> bool:
        if not self._tools:
            _say(TextPiece, self._buffer, pieces)
            self._buffer = ""
            return False
        said, tag = self._split_at(CALL_OPEN)
        _say(TextPiece, said, pieces)
        if tag is not None:
            self._begin_call()
        return tag is not None

    def _begin_call(self) -> None:
        """The buffer begins with `<tool_call>`, behind white space."""
        bare = self._buffer.lstrip()
        self._space_before_call = self._buffer[: len(self._buffer) - len(bare)]
        self._buffer = bare[len(CALL_OPEN) :]
        self._call = self._new_reader(self._tools, self._new_id)
        self._calls_from_reasoning = self._state == "reasoning"
        self._state = "call"

    def _split_at(self, *tags: str) -> tuple[str, str | None]:
        """Takes off the buffer the text before the first of `tags`, or all that cannot belong to one; space stays with
        the tag."""
        places = {at: tag for tag in tags if (at := self._buffer.find(tag)) >= 0}
        held = max(begun_length(self._buffer, tag) for tag in tags)
        end = min(places, default=len(self._buffer) - held)
        said = self._buffer[:end].rstrip()
        self._buffer = self._buffer[len(said) :]
        return said, places.get(end)

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
            kind = ReasoningPiece if self._calls_from_reasoning else TextPiece
            _say(kind, self._space_before_call + CALL_OPEN, pieces)
        self._buffer = call.rest
        self._skips_space = call.outcome == "called"
        self._state = self._state_after(call)
        return True

    def _state_after(self, call: CallReader) -> State:
        if self._has_called and not self._is_parallel:
            return "over"
        if not self._calls_from_reasoning:
            return "text"
        return "closed" if call.outcome == "called" else "reasoning"


def _say(kind: type[TextPiece] | type[ReasoningPiece], text: str, pieces: list[Piece]) -> None:
    if text:
        pieces.append(kind(text))
