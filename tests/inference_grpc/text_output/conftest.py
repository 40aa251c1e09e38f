from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from inference_grpc.model.gguf import GgufFile
from inference_grpc.model.resolve import resolve_model
from inference_grpc.text.constraint import CompiledConstraint, ConstraintCompiler, Matcher, bitmask_words
from inference_grpc.text.tokenizer import ModelTokenizer
from tests.inference_grpc.text_output.masks import PADDING, ids_of

FREE_TEXT = 10_000  # a mask with more ids than this is inside a string
# What brings an output to its end, dearest first.
CLOSING = ("}", "]", '"', ":", ",", "Z", "null", "true", "0", "1", "</", "<", "\n")


@pytest.fixture(scope="session")
def tokenizer() -> ModelTokenizer:
    _, path = resolve_model("smollm2-135m-instruct")
    return ModelTokenizer(GgufFile(path).metadata)


@pytest.fixture(scope="session")
def compiler(tokenizer: ModelTokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer.to_json(), tokenizer.vocabulary + PADDING, sorted(tokenizer.eos_ids))


@pytest.fixture(scope="session")
def allowed(compiler: ConstraintCompiler) -> Callable[[Matcher], list[int]]:
    """The ids that the mask allows."""
    row = torch.empty(bitmask_words(compiler.vocab_size), dtype=torch.int32)

    def ids(matcher: Matcher) -> list[int]:
        matcher.fill(row)
        return ids_of(row)

    return ids


@pytest.fixture(scope="session")
def walk(tokenizer: ModelTokenizer, allowed: Callable[[Matcher], list[int]]) -> Callable[..., str]:
    """Draws tokens at random under the mask, for a while any and then such as close what is open; the text so made.

    `closing` is what ends free text.
    """
    order = {tokenizer.encode(text)[0]: place for place, text in enumerate(CLOSING)}
    order |= dict.fromkeys(tokenizer.eos_ids, -1)

    def generate(
        compiled: CompiledConstraint, seed: int, *, free_tokens: int = 30, max_tokens: int = 600, closing: str = '"'
    ) -> str:
        chance = random.Random(seed)
        matcher = compiled.new_matcher()
        output: list[int] = []
        planned: list[int] = []
        end = tokenizer.encode(closing)
        for step in range(max_tokens):
            if matcher.is_done():
                break
            ids = allowed(matcher)
            assert ids, "nothing is allowed and nothing is done"
            if planned and planned[0] in ids:
                token = planned.pop(0)
            elif step < free_tokens:
                token = chance.choice(ids)
            elif len(ids) > FREE_TEXT and end[0] in ids and not tokenizer.eos_ids & set(ids):
                token, *planned = end
            else:
                best = min(order.get(token, 99) for token in ids)
                token = chance.choice([token for token in ids if order.get(token, 99) == best])
            matcher.accept(token)
            if token in tokenizer.eos_ids:
                break
            output.append(token)
        else:
            text = b"".join(tokenizer.token_bytes(token) for token in output)
            pytest.fail(f"no end after {max_tokens} tokens: {text[-300:]!r}")
        assert matcher.is_valid()
        return b"".join(tokenizer.token_bytes(token) for token in output).decode()

    return generate
