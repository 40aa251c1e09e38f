"""inspect: what a model file or folder holds, and what it will take to run it."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.load import matrix_names, open_checkpoint
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.text.tokenizer import ModelTokenizer


def inspect(source: Path, *, lists_tensors: bool = False) -> str:
    """A text for people, from configuration, headers and tokenizer. Raises `ModelFileError` or `TokenizerError` where
    the engine would refuse one of them."""
    opened = open_checkpoint(source)
    config = opened.config
    lines = [f"{source}: {'GGUF file' if opened.file else 'Hugging Face folder'}, {type(config).__name__}"]
    lines += [f"  {field.name} = {_short(getattr(config, field.name))}" for field in fields(config)]
    sizes = {name: opened.checkpoint.size(name) for name in matrix_names(opened)}
    if lists_tensors:
        lines += [
            f"  {name:<40} {(size.rows, size.columns)!s:<16} {size.format:<10} {size.nbytes:>14,}"
            for name, size in sizes.items()
        ]
    count, nbytes = Counter[str](), Counter[str]()
    for size in sizes.values():
        count[size.format] += 1
        nbytes[size.format] += size.nbytes
    lines += [f"  {count[kind]} matrices {kind}: {nbytes[kind] / 2**20:,.1f} MiB" for kind in sorted(count)]
    lines.append(f"  all matrices: {sum(nbytes.values()) / 2**20:,.1f} MiB")
    if isinstance(config, HybridConfig):
        lines.append(f"  draft layer (MTP): {'in the file' if 'mtp.fc' in opened.checkpoint else 'none'}")
    metadata = opened.file.metadata if opened.file else read_hf_tokenizer(source)
    tokenizer = ModelTokenizer(metadata)
    template = "with" if metadata.get("tokenizer.chat_template") else "without"
    lines.append(
        f"  tokenizer: {tokenizer.vocabulary} tokens, ends {sorted(tokenizer.eos_ids)}, {template} chat template"
    )
    return "\n".join(lines) + "\n"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        kinds = Counter(value)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return str(value)
