"""One choice from sampled tokens to events: detokenize, cut at stop strings, split into answer, reasoning and calls."""

from __future__ import annotations

from collections import deque

from inference_grpc.core.batch import SampledToken
from inference_grpc.events import (
    ChoiceFinished,
    Delta,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    TopLogprob,
)
from inference_grpc.text.detokenizer import Detokenizer
from inference_grpc.text.output_parser import (
    OutputParser,
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolArgumentsPiece,
    ToolStartPiece,
)
from inference_grpc.text.stop_strings import StopStrings
from inference_grpc.text.tokenizer import ModelTokenizer


class ChoiceStream:
    """Feed it every token that belongs to the output, in order; then `finish`.

    Log-probabilities travel with the text of their token: one whose text is held back, or cut off by a stop string,
    waits or is dropped with it. Those of reasoning and calls are dropped, since only text carries them.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        choice: int = 0,
        stops: list[str],
        parser: OutputParser | None = None,
        final_only: bool = False,
        echo: str = "",
    ) -> None:
        self.reasoning_tokens = 0
        self._tokenizer = tokenizer
        self._choice = choice
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._parser = parser
        self._final_only = final_only
        self._echo = echo
        self._withheld: list[Delta] = []  # final_only: everything until the end
        self._calls = 0
        self._decoded_chars = 0
        self._shown_chars = 0
        # (where the token's text begins, its log-probability), of tokens whose text has not come out.
        self._pending: deque[tuple[int, TokenLogprob]] = deque()
        self._logprobs: list[TokenLogprob] = []  # of text that is on its way through the parser

    @property
    def end_reason(self) -> FinishReason | None:
        """Why the choice is over by what it said, or None to go on."""
        if self._stops.matched is not None:
            return "stop_string"
        if self._parser is not None and self._parser.is_complete:
            return "tool_calls"
        return None

    def begin(self) -> list[Delta]:
        """The prompt's text, where it is to be repeated."""
        if not self._echo:
            return []
        return self._deliver([TextDelta(self._echo, completion_tokens=0, choice=self._choice)])

    def feed(self, token: SampledToken, completion_tokens: int) -> list[Delta]:
        """`completion_tokens`: of the whole request, this one included."""
        if token.logprob is not None:
            self._pending.append((self._decoded_chars, self._describe(token, token.logprob)))
        text = self._detokenizer.feed(token.token_id)
        self._decoded_chars += len(text)
        deltas = self._show(self._stops.feed(text), completion_tokens)
        if self._parser is not None and self._parser.in_reasoning:
            self.reasoning_tokens += 1
        return self._deliver(deltas)

    def finish(self, reason: FinishReason, completion_tokens: int) -> list[Event]:
        """What was held back, then `ChoiceFinished`."""
        deltas: list[Delta] = []
        if self._stops.matched is None:
            rest = self._stops.feed(self._detokenizer.finish())
            deltas = self._show(rest + self._stops.finish(), completion_tokens)
        if self._parser is not None:
            deltas += self._to_deltas(self._parser.finish(is_truncated=reason != "eos"), completion_tokens)
        if reason == "eos" and self._calls:
            reason = "tool_calls"
        self._deliver(deltas)
        delivered: list[Event] = list(self._withheld if self._final_only else deltas)
        for delta in self._withheld:
            delta.completion_tokens = completion_tokens
        return [*delivered, ChoiceFinished(reason, self._stops.matched, self._choice)]

    def _deliver(self, deltas: list[Delta]) -> list[Delta]:
        if not self._final_only:
            return deltas
        for delta in deltas:
            _join(self._withheld, delta)
        return []

    def _show(self, text: str, completion_tokens: int) -> list[Delta]:
        if not text:
            return []
        self._shown_chars += len(text)
        while self._pending and self._pending[0][0] < self._shown_chars:
            self._logprobs.append(self._pending.popleft()[1])
        pieces: list[Piece] = [TextPiece(text)] if self._parser is None else self._parser.feed(text)
        deltas = self._to_deltas(pieces, completion_tokens)
        if self._parser is not None and self._parser.in_reasoning:
            self._logprobs.clear()
        return deltas

    def _to_deltas(self, pieces: list[Piece], completion_tokens: int) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            match piece:
                case TextPiece(text):
                    logprobs, self._logprobs = self._logprobs or None, []
                    deltas.append(TextDelta(text, completion_tokens, self._choice, logprobs))
                case ReasoningPiece(text):
                    deltas.append(ReasoningDelta(text, completion_tokens, self._choice))
                    self._logprobs.clear()
                case ToolStartPiece(id_, name):
                    deltas.append(ToolCallStart(self._calls, id_, name, completion_tokens, self._choice))
                    self._calls += 1
                    self._logprobs.clear()
                case ToolArgumentsPiece(text):
                    deltas.append(ToolCallArguments(text, completion_tokens, self._choice))
                    self._logprobs.clear()
        return deltas

    def _describe(self, token: SampledToken, logprob: float) -> TokenLogprob:
        text, raw = self._tokenizer.token_text, self._tokenizer.token_bytes
        top = [TopLogprob(text(token_id), raw(token_id), value) for token_id, value in token.top]
        return TokenLogprob(text(token.token_id), raw(token.token_id), logprob, top)


def _join(earlier: list[Delta], delta: Delta) -> None:
    """Add a delta to the one it continues: texts and reasoning each become one, arguments one per call."""
    match delta:
        case TextDelta():
            for other in earlier:
                if isinstance(other, TextDelta):
                    other.text += delta.text
                    if delta.logprobs:
                        other.logprobs = (other.logprobs or []) + delta.logprobs
                    return
        case ReasoningDelta():
            for other in earlier:
                if isinstance(other, ReasoningDelta):
                    other.text += delta.text
                    return
        case ToolCallArguments():
            if earlier and isinstance(earlier[-1], ToolCallArguments):
                earlier[-1].text += delta.text
                return
    earlier.append(delta)
