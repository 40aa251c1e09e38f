"""inspect: what a model file or folder holds, and what it will take to run it."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.gguf_checkpoint import GgufCheckpoint
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.load import Opened, matrix_names, open_checkpoint
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.text.tokenizer import ModelTokenizer


def inspect(source: Path, *, lists_tensors: bool = False) -> str:
    """A text for people. Raises `ModelFileError` or `TokenizerError` for what the engine would refuse as well."""
    opened = open_checkpoint(source)
    config = opened.config
    lines = [f"{source}: {'GGUF file' if opened.file else 'Hugging Face folder'}, {type(config).__name__}"]
    lines += [f"  {field.name} = {_short(getattr(config, field.name))}" for field in fields(config)]
    rows = [(name, *_stored(opened, name)) for name in matrix_names(opened)]
    if lists_tensors:
        lines += [f"  {name:<40} {shape!s:<16} {kind:<10} {nbytes:>14,}" for name, shape, kind, nbytes in rows]
    count, size = Counter[str](), Counter[str]()
    for _, _, kind, nbytes in rows:
        count[kind] += 1
        size[kind] += nbytes
    lines += [f"  {count[kind]} matrices {kind}: {size[kind] / 2**20:,.1f} MiB" for kind in sorted(count)]
    lines.append(f"  all matrices: {sum(size.values()) / 2**20:,.1f} MiB")
    if isinstance(config, HybridConfig):
        lines.append(f"  draft layer (MTP): {'in the file' if 'mtp.fc' in opened.checkpoint else 'none'}")
    metadata = opened.file.metadata if opened.file else read_hf_tokenizer(source)
    tokenizer = ModelTokenizer(metadata)
    template = "with" if metadata.get("tokenizer.chat_template") else "without"
    lines.append(
        f"  tokenizer: {tokenizer.vocabulary} tokens, ends {sorted(tokenizer.eos_ids)}, {template} chat template"
    )
    return "\n".join(lines) + "\n"


def _stored(opened: Opened, name: str) -> tuple[tuple[int, int], str, int]:
    if opened.file is not None and isinstance(opened.checkpoint, GgufCheckpoint):
        stored = opened.file.tensors[opened.checkpoint.stored_name(name)]
        return (stored.shape[0], stored.shape[1]), stored.type.name.lower(), stored.nbytes
    assert isinstance(opened.checkpoint, HfCheckpoint)
    shape = opened.checkpoint.matrix_shape(name)
    matrix = opened.checkpoint.matrix(name, *shape)
    return shape, matrix.format, matrix.nbytes


def _short(value: object) -> str:
    if isinstance(value, tuple):
        kinds = Counter(value)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return str(value)
