"""export-gguf: a Hugging Face folder as one GGUF file, in the layout that llama.cpp's converter gives the family.

Matrices keep their bits: F32, F16 and BF16 as they are, NVFP4 with codes and scales copied and the scale of the tensor
beside it. GGUF has no FP8, so a folder with such matrices is refused rather than widened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.config import LlamaConfig
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Matrix, Nvfp4, Plain
from inference_grpc.model.gguf_checkpoint import gguf_name, head_order, inverse, value_rows
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.load import matrix_names, open_checkpoint
from inference_grpc.model.rope import gguf_values
from inference_grpc.model.weights import pair_order
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.tools.progress import Progress
from kernels.nvfp4.format import to_gguf

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "nvfp4": gguf.GGMLQuantizationType.NVFP4,
}
_PRE_TOKENIZERS = {"qwen35": "qwen35", "qwen2": "qwen2", "qwen3": "qwen2", "llama": "llama-bpe"}


def export_gguf(source: Path, target: Path, progress: Progress) -> None:
    """Raises `ModelFileError`; the file appears under its name only when it is complete."""
    if target.exists():
        raise ModelFileError(f"{target}: is there already; name a new file.")
    opened = open_checkpoint(source)
    checkpoint, config = opened.checkpoint, opened.config
    if not isinstance(checkpoint, HfCheckpoint):
        raise ModelFileError(f"{source}: is a GGUF file already.")
    family = "qwen35" if isinstance(config, HybridConfig) else str(checkpoint.config["model_type"])
    scratch = target.with_name(f".{target.name}.partial")
    writer = gguf.GGUFWriter(scratch, family)
    try:
        for key, value in (_metadata(family, config, checkpoint) | _tokenizer(family, source)).items():
            _add_value(writer, key, value)
        names, matrices = checkpoint.names(), set(matrix_names(opened))
        if isinstance(config, HybridConfig):
            names = [name for name in names if not name.endswith("rotary_emb.inv_freq")]
        for done, name in enumerate(names, 1):
            if name in matrices:
                matrix = checkpoint.matrix(name, *checkpoint.matrix_shape(name))
                _add_matrix(writer, checkpoint, config, name, matrix)
            else:
                _add_vector(writer, checkpoint, config, name)
            progress.step(done, len(names), name)
        checkpoint.check_all_read()
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _add_matrix(
    writer: Any, checkpoint: HfCheckpoint, config: LlamaConfig | HybridConfig, name: str, matrix: Matrix
) -> None:
    stored = gguf_name(name, hybrid=config if isinstance(config, HybridConfig) else None)
    if isinstance(config, HybridConfig):
        if name.endswith("linear_attn.out_proj"):
            matrix = matrix.columns(inverse(head_order(config, config.value_size)))
        order = value_rows(name, config)
        matrix = matrix if order is None else matrix.rows(inverse(order))
    elif checkpoint.config["model_type"] == "llama" and name.endswith(("q_proj", "k_proj")):
        heads = config.heads if name.endswith("q_proj") else config.kv_heads
        matrix = matrix.rows(pair_order(heads, config.head_size))
    if isinstance(matrix, Nvfp4):
        try:
            blocks, scale = to_gguf(matrix.matrix)
        except ValueError as error:
            raise ModelFileError(f"{checkpoint.path}: tensor {name!r}: {error}.") from error
        writer.add_tensor(stored, blocks.flatten(1).numpy(), raw_dtype=_TYPES["nvfp4"])
        sidecar = stored.removesuffix(".weight")
        writer.add_tensor(f"{sidecar}.scale", scale.numpy())
        if matrix.matrix.input_multiplier is not None:
            writer.add_tensor(f"{sidecar}.input_scale", torch.tensor([matrix.matrix.input_multiplier]).numpy())
        return
    if not isinstance(matrix, Plain):
        raise ModelFileError(
            f"{checkpoint.path}: tensor {name!r} is {matrix.format}, which GGUF cannot hold; export the BF16 folder or "
            "one that was quantized to NVFP4."
        )
    values = matrix.values.contiguous()
    if matrix.format == "f32":
        writer.add_tensor(stored, values.numpy())
    else:
        writer.add_tensor(stored, values.view(torch.uint8).numpy(), raw_dtype=_TYPES[matrix.format])


def _add_vector(writer: Any, checkpoint: HfCheckpoint, config: LlamaConfig | HybridConfig, name: str) -> None:
    (values,) = (tensor.float() for tensor in checkpoint.stored_parts(name).values())
    values = checkpoint.vector(name, *(n for n in values.shape if n > 1 or values.ndim == 1))
    if isinstance(config, LlamaConfig):
        if checkpoint.config["model_type"] == "llama" and name.endswith(("q_proj.bias", "k_proj.bias")):
            raise ModelFileError(f"{checkpoint.path}: tensor {name!r} has no place in a llama GGUF.")
        writer.add_tensor(gguf_name(name), values.numpy())
        return
    if name.endswith(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")) and not name.endswith("linear_attn.norm"):
        values = values + 1.0
    if name.endswith("A_log"):
        values = -values.exp()
    order = value_rows(name, config)
    if order is not None:
        values = values[inverse(order)]
    writer.add_tensor(gguf_name(name, hybrid=config), values.contiguous().numpy())


def _metadata(family: str, config: LlamaConfig | HybridConfig, checkpoint: HfCheckpoint) -> dict[str, Any]:
    mtp_layers = int("mtp.fc" in checkpoint)
    values: dict[str, Any] = {
        "general.name": checkpoint.path.resolve().name,
        f"{family}.context_length": config.context_tokens,
        f"{family}.embedding_length": config.hidden,
        f"{family}.feed_forward_length": config.feed_forward,
        f"{family}.attention.head_count": config.heads,
        f"{family}.attention.head_count_kv": config.kv_heads,
        f"{family}.attention.key_length": config.head_size,
        f"{family}.attention.value_length": config.head_size,
        f"{family}.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        f"{family}.rope.freq_base": config.rope_base,
        f"{family}.vocab_size": config.vocabulary,
    }
    try:
        values |= gguf_values(config.rope, family)
    except ValueError as error:
        raise ModelFileError(f"{checkpoint.path}: {error}.") from error
    if isinstance(config, LlamaConfig):
        return values | {f"{family}.block_count": config.layers, f"{family}.rope.dimension_count": config.head_size}
    interval = config.layer_kinds.index("full_attention") + 1 if config.full_layers else len(config.layer_kinds) + 1
    regular = tuple(
        "linear_attention" if (n + 1) % interval else "full_attention" for n in range(len(config.layer_kinds))
    )
    if config.layer_kinds != regular:
        raise ModelFileError(
            f"{checkpoint.path}: layer_types is not regular, and GGUF has one interval for all layers."
        )
    return values | {
        f"{family}.block_count": len(config.layer_kinds) + mtp_layers,
        f"{family}.nextn_predict_layers": mtp_layers,
        f"{family}.full_attention_interval": interval,
        f"{family}.rope.dimension_count": config.rotated,
        f"{family}.ssm.conv_kernel": CONV_TAPS,
        f"{family}.ssm.state_size": config.key_size,
        f"{family}.ssm.group_count": config.key_heads,
        f"{family}.ssm.time_step_rank": config.value_heads,
        f"{family}.ssm.inner_size": config.value_channels,
    }


def _tokenizer(family: str, source: Path) -> dict[str, Any]:
    return read_hf_tokenizer(source) | {"tokenizer.ggml.pre": _PRE_TOKENIZERS[family]}


def _add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:  # GGUF has no empty arrays
        writer.add_array(key, value)
