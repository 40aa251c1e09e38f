"""A tiny model with random weights as a GGUF file: a byte-level vocabulary, ChatML, everything a real file has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "t he", "Ġ the", "i n", "he ll"]
HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS, CONTEXT = 64, 96, 4, 2, 2, 1024


def byte_texts() -> list[str]:
    """The 256 bytes as byte-level BPE writes them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    texts = [*CONTROL_TOKENS, *byte_texts(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [int(gguf.TokenType.CONTROL)] * len(CONTROL_TOKENS)
    return texts, types + [int(gguf.TokenType.NORMAL)] * (len(texts) - len(types))


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    head_size = HIDDEN // HEADS
    rows = len(vocabulary()[0])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_q": (HIDDEN, HIDDEN),
                "attn_k": (KV_HEADS * head_size, HIDDEN),
                "attn_v": (KV_HEADS * head_size, HIDDEN),
                "attn_output": (HIDDEN, HIDDEN),
                "ffn_gate": (FEED_FORWARD, HIDDEN),
                "ffn_up": (FEED_FORWARD, HIDDEN),
                "ffn_down": (HIDDEN, FEED_FORWARD),
            }.items()
        }
    made = {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ["output_norm", *(f"blk.{layer}.{part}_norm" for layer in range(LAYERS) for part in ("attn", "ffn"))]
    return made | {f"{name}.weight": generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32) for name in norms}


def write_gguf(
    path: Path,
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    overrides: Mapping[str, Any] | None = None,
    architecture: str = "llama",
    template: str | None = CHATML,
) -> Path:
    """`overrides` sets metadata after the defaults; a value of None leaves the key out."""
    writer = gguf.GGUFWriter(path, architecture)
    texts, types = vocabulary()
    metadata: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(texts),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    } | dict(overrides or {})
    for key, value in metadata.items():
        if value is not None:
            add_value(writer, key, value)
    for name, values in (tensors() if weights is None else weights).items():
        if values.ndim > 1 and quantization != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quantize(values, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
