"""What the readers of one tool call share: they get the text behind `<tool_call>` and say when the call is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from inference_grpc.core.request import Tool
from inference_grpc.text.output_parser.pieces import Piece

# "reading": more is needed. "called": a call was made. "not_a_call": nothing was said; the text is only text.
Outcome = Literal["reading", "called", "not_a_call"]


class CallReader(Protocol):
    """Reads one call. When `outcome` leaves "reading", `rest` is the text that does not belong to the call.

    After "not_a_call" that is everything fed.
    """

    outcome: Outcome
    rest: str

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self, *, is_truncated: bool) -> list[Piece]:
        """The output ends here. A call in its middle is closed to valid JSON, but left open if it was cut by a limit:
        a caller must not take half a command for a whole one."""


ReaderFactory = Callable[[dict[str, Tool], Callable[[], str]], CallReader]


def begun_length(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the start of `tag`."""
    for count in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:count]):
            return count
    return 0
