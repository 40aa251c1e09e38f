"""The two libraries behind one face: compile a schema, follow tokens, fill a mask."""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch


class Unsupported(Exception):
    """The library refuses the schema."""


class Follower(Protocol):
    def fill(self, row: torch.Tensor) -> None: ...

    def accept(self, token_id: int) -> bool: ...

    def may_end(self) -> bool: ...


class Library(Protocol):
    name: str

    def compile(self, schema: dict[str, Any]) -> Any: ...

    def follow(self, compiled: Any) -> Follower: ...


class Llguidance:
    name = "llguidance"

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: list[int]) -> None:
        import llguidance

        self._module = llguidance
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos_ids)

    def compile(self, schema: dict[str, Any]) -> Any:
        overrides = {"whitespace_pattern": r"\x20|\n\x20{0,20}"}
        grammar = self._module.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides)
        matcher = self._module.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Unsupported(matcher.get_error())
        return matcher

    def follow(self, compiled: Any) -> Follower:
        return _LlguidanceFollower(compiled.deep_copy())


class _LlguidanceFollower:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, row: torch.Tensor) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * 4)

    def accept(self, token_id: int) -> bool:
        return self._matcher.consume_token(token_id)

    def may_end(self) -> bool:
        return self._matcher.is_accepting()


class Xgrammar:
    name = "xgrammar"

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: list[int]) -> None:
        import xgrammar

        self._module = xgrammar
        tokens = json.loads(tokenizer_json)["model"]["vocab"]
        self._eos_id = eos_ids[0]
        self._info = xgrammar.TokenizerInfo(
            sorted(tokens, key=tokens.__getitem__),
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=vocab_size,
            stop_token_ids=eos_ids,
        )

    def compile(self, schema: dict[str, Any]) -> Any:
        # A fresh compiler, since it caches the parts of grammars.
        compiler = self._module.GrammarCompiler(self._info, max_threads=1)
        try:
            # Neither strict nor lenient beyond the schema: what the schema says is what is compared.
            return compiler.compile_json_schema(json.dumps(schema), strict_mode=False, max_whitespace_cnt=20)
        except RuntimeError as error:
            raise Unsupported(str(error)) from error

    def follow(self, compiled: Any) -> Follower:
        return _XgrammarFollower(self._module.GrammarMatcher(compiled), self._eos_id)


class _XgrammarFollower:
    def __init__(self, matcher: Any, eos_id: int) -> None:
        self._matcher = matcher
        self._eos_id = eos_id

    def fill(self, row: torch.Tensor) -> None:
        self._matcher.fill_next_token_bitmask(row[None], 0)

    def accept(self, token_id: int) -> bool:
        return self._matcher.accept_token(token_id)

    def may_end(self) -> bool:
        return self._matcher.accept_token(self._eos_id)
