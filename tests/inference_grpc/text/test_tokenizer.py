"""Tokenizers rebuilt from metadata give the ids of the originals, and every id its own bytes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.model.gguf import GgufFile
from inference_grpc.model.resolve import EMBEDDED_MODEL, resolve_model
from inference_grpc.text.detokenizer import Detokenizer
from inference_grpc.text.tokenizer import ModelTokenizer, TokenizerError
from tests.inference_grpc.tiny_model import MERGES, vocabulary


@pytest.fixture(scope="module")
def embedded() -> ModelTokenizer:
    return ModelTokenizer(GgufFile(resolve_model(EMBEDDED_MODEL)[1]).metadata)


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    texts, types = vocabulary()
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": texts, "token_type": types, "merges": MERGES} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def decoded(tokenizer: ModelTokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


def test_ids_of_the_embedded_model_are_those_of_its_publisher(embedded: ModelTokenizer) -> None:
    assert embedded.encode("The capital of France is Paris.") == [504, 3575, 282, 4649, 314, 7042, 30]
    # Each digit is a token of its own.
    assert len(embedded.encode("2024")) == 4
    assert embedded.encode("<|im_start|>user\n")[0] == 1
    assert embedded.eos_ids == {0, 2}
    assert not embedded.adds_bos


@settings(max_examples=100, deadline=None)
# The embedded vocabulary has no tokens for some bytes (control characters, unassigned planes): it is asked for less.
@given(text=st.text(max_size=60), ordinary=st.text(alphabet="aBé漢字😀 \n\t12.'", max_size=60))
def test_any_text_comes_back_from_its_ids(embedded: ModelTokenizer, text: str, ordinary: str) -> None:
    for tokenizer, expected in ((ModelTokenizer(tiny_metadata()), text), (embedded, ordinary)):
        ids = tokenizer.encode(expected)
        assert decoded(tokenizer, ids) == expected
        detokenizer = Detokenizer(tokenizer)
        assert "".join(map(detokenizer.feed, ids)) + detokenizer.finish() == expected


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=40))
def test_pieces_of_characters_are_held_until_whole_or_replaced(ids: list[int]) -> None:
    """Ids at random split characters everywhere; the pieces join to the decoding of all the bytes."""
    tokenizer = ModelTokenizer(tiny_metadata())
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    assert "".join(pieces) + detokenizer.finish() == decoded(tokenizer, ids)
    whole = Detokenizer(tokenizer)
    emoji = tokenizer.encode("😀")
    assert [whole.feed(token_id) for token_id in emoji] == ["", "", "", "😀"]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_every_supported_way_to_split_keeps_the_text(pre: str) -> None:
    tokenizer = ModelTokenizer(tiny_metadata(pre=pre))
    text = "Hello, the  123 wörld's\n\n end "
    assert decoded(tokenizer, tokenizer.encode(text)) == text
    assert len(tokenizer.encode("the the")) == 2


def test_the_token_that_begins_a_text_is_added_once() -> None:
    tokenizer = ModelTokenizer(tiny_metadata(add_bos_token=True, bos_token_id=1))
    once = tokenizer.encode_prompt("hello")
    assert once[0] == 1
    assert tokenizer.encode_prompt("<|im_start|>hello") == once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"model": "t5"}, "'t5'; supported are gpt2 and llama"),
        ({"pre": "klingon"}, "'klingon'; supported are"),
        ({"token_type": [1, 1]}, "has 2 entries"),
    ],
)
def test_metadata_that_make_no_tokenizer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        ModelTokenizer(tiny_metadata(**changes))


SCORED = {"▁a": -2.0, "ab": -1.0, "bc": -3.0, "▁ab": -5.0, "abc": -4.0, "▁abc": -6.0}
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc", *SCORED]
SCORES = [0.0] * (len(PIECES) - len(SCORED)) + list(SCORED.values())
PIECE_TYPES = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259)


def sentence_piece_ids(text: str) -> list[int]:
    """The algorithm as SentencePiece defines it: join the neighbours with the best score, the leftmost of equals."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [
            (-SCORES[PIECES.index(left + right)], place)
            for place, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in PIECES
        ]
        if not joins:
            break
        place = min(joins)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [PIECES.index(symbol)] if symbol in PIECES else [3 + byte for byte in symbol.encode()]
    return ids


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="abc é", min_size=1, max_size=12))
def test_sentence_piece_models_tokenize_as_defined(text: str) -> None:
    tokenizer = ModelTokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": PIECES,
            "tokenizer.ggml.scores": SCORES,
            "tokenizer.ggml.token_type": PIECE_TYPES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
    ids = tokenizer.encode(text)
    assert ids == sentence_piece_ids(text)
    assert decoded(tokenizer, ids) == " " + text
    assert tokenizer.encode_prompt(text)[0] == 1
