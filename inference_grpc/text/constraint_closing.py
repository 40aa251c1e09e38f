"""Finds a short way from anywhere inside a JSON value to its valid end, for outputs that run out of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLMatcher, LLTokenizer

# What brings JSON to its end, dearest first; behind them comes the lowest id that is allowed.
_CLOSING = ("}", "]", '"', ":", ",", "null", "0", "1", "true", "Z")
# A mask that allows this share of the vocabulary is inside a string, where all the others above are only letters.
_FREE_SHARE = 8


class Closer:
    """One a vocabulary; thread-safe, since all it does is look."""

    def __init__(self, tokenizer: LLTokenizer, eos_ids: Iterable[int]) -> None:
        self._eos_ids = tuple(eos_ids)
        singles = [tokenizer.tokenize_str(text) for text in _CLOSING]
        self._order = (*self._eos_ids, *(ids[0] for ids in singles if len(ids) == 1))
        (self._quote, *_) = tokenizer.tokenize_str('"')
        self._free_ids = tokenizer.vocab_size // _FREE_SHARE

    def plan(self, matcher: LLMatcher, limit: int) -> list[int] | None:
        """At most `limit` tokens, the end of text included where it has to be said; None if so many do not do.

        `matcher` stays as it is.
        """
        ahead = matcher.deep_copy()
        plan: list[int] = []
        while len(plan) <= limit:
            if ahead.is_stopped():
                return None if ahead.is_error() else plan
            tokens = ahead.compute_ff_tokens() or [self._next(ahead.compute_bitmask())]
            if not ahead.consume_tokens(tokens):
                return None
            plan += tokens
        return None

    def _next(self, mask: bytes) -> int:
        if _allows(mask, self._quote) and int.from_bytes(mask, "little").bit_count() > self._free_ids:
            return self._quote
        for token_id in self._order:
            if _allows(mask, token_id):
                return token_id
        zeros = len(mask) - len(mask.lstrip(b"\0"))
        low = mask[zeros : zeros + 1]
        return zeros * 8 + (int.from_bytes(low, "little") & -int.from_bytes(low, "little")).bit_length() - 1


def _allows(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id >> 3] >> (token_id & 7) & 1)
