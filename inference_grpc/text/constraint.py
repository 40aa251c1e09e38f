"""Constrained decoding: what the tokens of an output may be, step by step, so that the whole is valid.

    compiler = ConstraintCompiler(tokenizer_json, vocab_size, eos_ids)          # once a model
    compiled = compiler.compile(constraint, tools, tool_choice, family)         # once a request, in its own thread
    matcher = compiled.new_matcher()                                            # once a choice
    matcher.fill(bitmask[row])  ->  sample  ->  matcher.accept(token_id)        # once a step

A matcher is made for one thread at a time; different matchers may run in different threads.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict

import torch
from llguidance import LLMatcher, LLTokenizer

from inference_grpc.core.request import Constraint, Tool, ToolChoice
from inference_grpc.errors import UnsupportedSchema
from inference_grpc.text.constraint_closing import Closer
from inference_grpc.text.constraint_grammar import build_grammar, needs_grammar
from inference_grpc.text.constraint_schema import LIMITS
from inference_grpc.text.families import Family, ReasoningStart
from inference_grpc.text.output_parser import offered_tools

CACHE_ENTRIES = 128
# An output of limited length is first looked at for a way to its end when this many tokens are left.
FIRST_LOOK_TOKENS = 512
# One token may open an object, and lengthen the way by all its required properties: keep some in hand.
SPARE_TOKENS = 16


def bitmask_words(vocab_size: int) -> int:
    """Length of one row: 32 tokens a word, lowest bit first; a set bit allows the token."""
    return (vocab_size + 31) // 32


class Matcher:
    """Follows one output. Tokens accepted are those of the model, the end of text included.

    With a `closer`, an output that runs out of tokens is led to a valid end just in time: `is_cut` then.
    """

    def __init__(self, matcher: LLMatcher, closer: Closer | None = None) -> None:
        self._matcher = matcher
        self._closer = closer
        self._is_cut = False
        self._plan: list[int] = []  # once this is set, nothing else may be said
        self._look_at = FIRST_LOOK_TOKENS  # look for a plan when no more tokens than this are left

    def fill(self, bitmask: torch.Tensor, tokens_left: int | None = None) -> None:
        """Write which tokens may come next: int32 [words], contiguous, on the CPU. The end only if the whole is valid.

        `tokens_left`: how many tokens may still be said, this one included; None = no limit.
        Raises `UnsupportedSchema` if the grammar turns out too complex to follow; the request has to fail then.
        """
        if bitmask.dtype != torch.int32 or not bitmask.is_contiguous() or bitmask.device.type != "cpu":
            raise ValueError("The bitmask must be a contiguous int32 row on the CPU.")
        if tokens_left is not None and tokens_left <= self._look_at and not self._plan:
            self._look_ahead(tokens_left)
        if self._plan:
            bitmask.zero_()
            bitmask.view(torch.uint8)[self._plan[0] >> 3] = 1 << (self._plan[0] & 7)
            return
        self._matcher.unsafe_compute_mask_ptr(bitmask.data_ptr(), bitmask.numel() * 4)
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise UnsupportedSchema(f"The grammar is too complex to follow: {reason}", keyword="complexity")

    def accept(self, token_id: int) -> None:
        """Go on by one token, which the last mask allowed. Raises `ValueError` for one that it did not."""
        if not self._matcher.consume_token(token_id):
            raise ValueError(f"Token {token_id} does not fit the grammar.")
        if self._plan:
            self._plan.pop(0)

    @property
    def is_cut(self) -> bool:
        """Whether the output was led to its end for want of tokens: valid, but not all that the model had to say."""
        return self._is_cut

    def is_done(self) -> bool:
        """Whether the output is valid and nothing but the end can follow: no further step is needed."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def is_valid(self) -> bool:
        """Whether the output may end here."""
        return self._matcher.is_accepting()

    def ahead(self) -> Matcher:
        """One of its own at the same place, to try drafts on: it has no closer, so it is led to an end only where this
        one is already."""
        ahead = Matcher(self._matcher.deep_copy())
        ahead._plan = list(self._plan)
        return ahead

    def _look_ahead(self, tokens_left: int) -> None:
        """Take to the shortest known way to the end if no more than it is left, or say when to look again."""
        if self._closer is None:
            self._look_at = 0
            return
        plan = self._closer.plan(self._matcher, tokens_left)
        spare = tokens_left - len(plan or ())
        if plan and spare <= SPARE_TOKENS:
            self._plan, self._is_cut = plan, True
        elif plan:
            self._look_at = tokens_left - max(1, (spare - SPARE_TOKENS) // 4)
        else:
            self._look_at = tokens_left * 3 // 4


class CompiledConstraint:
    """A grammar ready for use. Shared by all who ask for the same one."""

    def __init__(self, prototype: LLMatcher, closer: Closer | None) -> None:
        self._prototype = prototype
        self._closer = closer
        self._lock = threading.Lock()

    def new_matcher(self) -> Matcher:
        """A matcher at the start of the output; cheap."""
        with self._lock:
            return Matcher(self._prototype.deep_copy(), self._closer)


class ConstraintCompiler:
    """Compiles what requests ask for against one model's vocabulary. Thread-safe; keeps the latest grammars.

    Work is bounded by the size and depth of schemas and by the library's count of steps (constraint_schema.LIMITS).
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: list[int]) -> None:
        """`tokenizer_json`: the format of the `tokenizers` package. `vocab_size`: width of the logits; ids past the
        tokenizer's own are padding and never allowed."""
        self.vocab_size = vocab_size
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos_ids)
        self._closer = Closer(self._tokenizer, eos_ids)
        self._cache: OrderedDict[bytes, CompiledConstraint] = OrderedDict()
        self._lock = threading.Lock()

    def compile(
        self,
        constraint: Constraint | None,
        tools: list[Tool],
        tool_choice: ToolChoice,
        family: Family,
        *,
        reasoning: ReasoningStart = "none",
    ) -> CompiledConstraint | None:
        """What holds the output to the constraint and the choice of tools; None where anything may be said.

        `reasoning` says where reasoning may stand before the answer (families.reasoning_start): it is free text.
        Raises `UnsupportedSchema` (fields keyword, path, tool) and `InvalidRequest`.
        """
        if not needs_grammar(constraint, tools, tool_choice):
            return None
        key = _key(constraint, tools, tool_choice, family, reasoning)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        grammar = build_grammar(constraint, tools, tool_choice, family, reasoning)
        # A call is never closed for the model: half a command must not pass for a whole one.
        closes = constraint is not None and constraint.kind in ("json_schema", "json_object")
        closes = closes and not offered_tools(tools, tool_choice)
        compiled = CompiledConstraint(self._matcher(grammar, constraint), self._closer if closes else None)
        with self._lock:
            self._cache[key] = compiled
            self._cache.move_to_end(key)
            while len(self._cache) > CACHE_ENTRIES:
                self._cache.popitem(last=False)
        return compiled

    def _matcher(self, grammar: str, constraint: Constraint | None) -> LLMatcher:
        # Drops the interpreter lock meanwhile.
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            keyword = constraint.kind if constraint is not None else "parameters"
            reason = matcher.get_error().partition("\n")[0]  # the grammar follows
            raise UnsupportedSchema(f"The {keyword} cannot be enforced: {reason}", keyword=keyword)
        return matcher


def _key(
    constraint: Constraint | None, tools: list[Tool], tool_choice: ToolChoice, family: Family, reasoning: ReasoningStart
) -> bytes:
    asked = (
        constraint and (constraint.kind, constraint.text),
        [(tool.name, tool.parameters, tool.strict) for tool in tools],
        (tool_choice.mode, tool_choice.names, tool_choice.parallel),
        family,
        reasoning,
    )
    try:
        return hashlib.sha256(json.dumps(asked).encode()).digest()
    except RecursionError as error:
        raise UnsupportedSchema("The parameters of a tool are nested too deeply.", keyword="parameters") from error
