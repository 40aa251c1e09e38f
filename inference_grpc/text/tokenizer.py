"""The tokenizer of a model, rebuilt with `tokenizers` from the metadata of its GGUF file (or what stands for them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # tokenizer.ggml.token_type
_SPLIT_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPLIT_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLIT_QWEN2: Final = _SPLIT_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLIT_QWEN35: Final = _SPLIT_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+"
)
# Texts that end a turn in some family. A file names one of them as its end; the model may also say another.
_TURN_ENDS: Final = frozenset(
    ("</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
)


class TokenizerError(Exception):
    """The metadata do not describe a tokenizer that we can rebuild; the text names the key."""


class ModelTokenizer:
    """Text to ids and ids to bytes. Encoding is thread-safe."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:  # values are free form by nature
        self._texts: list[str] = _require(metadata, "tokenizer.ggml.tokens")
        types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(self._texts)
        if len(types) != len(self._texts):
            raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(self._texts)} tokens.")
        kind = _require(metadata, "tokenizer.ggml.model")
        own_json = metadata.get("tokenizer.huggingface.json")
        if own_json is not None and kind in ("gpt2", "llama"):
            self._tokenizer = Tokenizer.from_str(own_json)
            to_bytes: Callable[[str, int], bytes] = _byte_level_bytes if kind == "gpt2" else _sentence_piece_bytes
        elif kind == "gpt2":
            self._tokenizer = _byte_level(metadata, self._texts)
            to_bytes = _byte_level_bytes
        elif kind == "llama":
            self._tokenizer = _sentence_piece(metadata, self._texts, types)
            to_bytes = _sentence_piece_bytes
        else:
            raise TokenizerError(f"tokenizer.ggml.model is {kind!r}; supported are gpt2 and llama.")
        named = [
            AddedToken(text, special=type_ == CONTROL, normalized=False)
            for text, type_ in zip(self._texts, types, strict=True)
            if type_ in (CONTROL, USER_DEFINED)
        ]
        self._tokenizer.add_tokens(named)

        # What a token adds to the text. Control tokens add nothing; those a user defined stand for themselves.
        self._bytes: list[bytes] = [
            b"" if type_ == CONTROL else text.encode() if type_ == USER_DEFINED else to_bytes(text, type_)
            for text, type_ in zip(self._texts, types, strict=True)
        ]
        self.control_ids = frozenset(index for index, type_ in enumerate(types) if type_ == CONTROL)
        self.bos_id: int | None = metadata.get("tokenizer.ggml.bos_token_id")
        self.adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")) and self.bos_id is not None
        self.eos_ids = self._find_eos(metadata)

    def _find_eos(self, metadata: Mapping[str, Any]) -> frozenset[int]:
        named = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
        declared = {metadata[key] for key in named if isinstance(metadata.get(key), int)}
        return frozenset(declared | {index for index in self.control_ids if self._texts[index] in _TURN_ENDS})

    @property
    def vocabulary(self) -> int:
        return len(self._texts)

    def to_json(self) -> str:
        """The tokenizer in the format of the `tokenizers` package."""
        return self._tokenizer.to_str()

    def encode(self, text: str) -> list[int]:
        """`text` as it stands: the names of special tokens in it become those tokens, and nothing is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """As `encode`, with the token that begins a text in front if the model wants one and the text has none."""
        ids = self.encode(text)
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def token_text(self, token_id: int) -> str:
        """The token by name, for people: special tokens show."""
        return self._bytes[token_id].decode("utf-8", "replace") or self._texts[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """What it adds to the text; nothing for a control token."""
        return self._bytes[token_id]

    def special_text(self, token_id: int | None) -> str:
        return self._texts[token_id] if token_id is not None and token_id < len(self._texts) else ""


def _require(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise TokenizerError(f"the metadata key {key!r} is missing.")
    return metadata[key]


def _byte_level(metadata: Mapping[str, Any], texts: list[str]) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    merges = [tuple(merge.split(" ", 1)) for merge in _require(metadata, "tokenizer.ggml.merges")]
    kind = metadata.get("tokenizer.ggml.pre", "default")
    # Llama 3 looks a whole word up before it merges.
    tokenizer = Tokenizer(BPE(_vocabulary(texts), merges, ignore_merges=kind == "llama-bpe"))
    spaces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif kind in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[kind]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spaces])
    else:
        supported = ", ".join(sorted([*_SPLITS, "smollm"]))
        raise TokenizerError(f"tokenizer.ggml.pre is {kind!r}; supported are {supported}.")
    if kind in ("qwen2", "qwen35"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_SPLITS: Final = {
    "default": _SPLIT_GPT2,
    "gpt-2": _SPLIT_GPT2,
    "llama-bpe": _SPLIT_LLAMA3,
    "llama3": _SPLIT_LLAMA3,
    "qwen2": _SPLIT_QWEN2,
    "qwen35": _SPLIT_QWEN35,
}


def _sentence_piece(metadata: Mapping[str, Any], texts: list[str], types: list[int]) -> Tokenizer:
    """SentencePiece BPE, as Llama 2 has it: the merges are implied by the scores of the pieces."""
    scores: list[float] = _require(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(texts):
        raise TokenizerError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(texts)} tokens.")
    vocabulary = _vocabulary(texts)
    mergeable = {text for text, type_ in zip(texts, types, strict=True) if type_ not in (CONTROL, BYTE)}
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for index, text in enumerate(texts):
        if text in mergeable and len(text) > 1:
            for cut in range(1, len(text)):
                left, right = text[:cut], text[cut:]
                if left in mergeable and right in mergeable:
                    ranked.append((-scores[index], vocabulary[left], vocabulary[right], (left, right)))
    ranked.sort()
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        BPE(vocabulary, [merge for *_, merge in ranked], unk_token=texts[unknown], fuse_unk=True, byte_fallback=True)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _vocabulary(texts: list[str]) -> dict[str, int]:
    vocabulary = {text: index for index, text in enumerate(texts)}
    if len(vocabulary) != len(texts):
        raise TokenizerError("tokenizer.ggml.tokens holds the same text twice.")
    return vocabulary


def _printable_bytes() -> dict[str, int]:
    """GPT-2's table: bytes that print stand for themselves, the others for code points from 256 up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF: Final = _printable_bytes()


def _byte_level_bytes(text: str, type_: int) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in text)
    except KeyError:  # a token that was never cut from bytes
        return text.encode()


def _sentence_piece_bytes(text: str, type_: int) -> bytes:
    return bytes([int(text[1:-1], 16)]) if type_ == BYTE else text.replace("▁", " ").encode()
