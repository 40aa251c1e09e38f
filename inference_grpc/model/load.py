"""From a path to a model that can run: which family it is, in which container it lies, in which formats it runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inference_grpc.model.checkpoint import Checkpoint, HfCheckpoint
from inference_grpc.model.config import FAMILIES, LlamaConfig, read_config, read_hf_dense_config
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Matrix
from inference_grpc.model.gguf import GgufFile
from inference_grpc.model.gguf_checkpoint import GgufCheckpoint
from inference_grpc.model.hybrid import HybridModel, HybridWeights
from inference_grpc.model.hybrid_config import HybridConfig, read_gguf_config, read_hf_config
from inference_grpc.model.hybrid_weights import load_hybrid_weights
from inference_grpc.model.hybrid_weights import matrix_names as hybrid_matrix_names
from inference_grpc.model.interface import Model
from inference_grpc.model.linear import Numerics, Precision, packs_itself
from inference_grpc.model.llama import LlamaModel
from inference_grpc.model.memory import KvFormat, cache_format
from inference_grpc.model.packed_cache import Kept, PackedCache, key_of
from inference_grpc.model.recipe import AS_STORED, Recipe
from inference_grpc.model.weights import Convert, LlamaWeights, load_weights
from inference_grpc.model.weights import matrix_names as dense_matrix_names
from kernels.paged_attention.stage import Staging

HYBRID_TYPES = ("qwen3_5", "qwen3_5_text")


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint whose configuration is known and whose weights are still where they lie."""

    checkpoint: Checkpoint
    config: LlamaConfig | HybridConfig
    file: GgufFile | None  # None: a folder


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Model
    formats: Counter[str]  # matrices by the format they are kept in


def open_checkpoint(path: Path) -> Opened:
    """A GGUF file or a Hugging Face folder. Raises `ModelFileError`."""
    if path.is_dir():
        checkpoint = HfCheckpoint(path)
        return Opened(checkpoint, _hf_config(path / "config.json", checkpoint.config), None)
    file = GgufFile(path)
    if file.metadata.get("general.architecture") == "qwen35":
        hybrid = read_gguf_config(file)
        return Opened(GgufCheckpoint(file, rotates_pairs=False, hybrid=hybrid), hybrid, file)
    config = read_config(file)
    return Opened(GgufCheckpoint(file, rotates_pairs=file.metadata["general.architecture"] == "llama"), config, file)


def matrix_names(opened: Opened) -> list[str]:
    """Every matrix of the model, in the order of its layers."""
    if isinstance(opened.config, HybridConfig):
        return list(hybrid_matrix_names(opened.config, with_mtp="mtp.fc" in opened.checkpoint))
    return list(dense_matrix_names(opened.config))


def load_model(
    opened: Opened,
    *,
    name: str,
    vocabulary: int,
    recipe: Recipe = AS_STORED,
    product: Precision = "float16",
    cache: PackedCache | None = None,
    staging: Staging | None = None,
) -> Loaded:
    """`vocabulary`: the tokens of the tokenizer. `staging`: the rule, where the recipe has a cache in two stages.
    Raises `ModelFileError` naming file and tensor."""
    config = opened.config
    _check_vocabulary(opened, vocabulary)
    numerics = recipe.numerics("cpu", product)
    kept = _read_weights(opened, recipe, numerics, cache if product == "float16" and packs_itself() else None, name)
    precision = describe(recipe, kept.formats, numerics, staging)
    if recipe.kv == "staged" and config.head_size & (config.head_size - 1):
        raise ModelFileError(
            f"{opened.checkpoint.path}: heads of {config.head_size} are no power of two, as a staged cache wants them."
        )
    return Loaded(_make_model(name, config, kept.weights, precision, vocabulary, recipe.kv, staging), kept.formats)


def load_observed(opened: Opened, *, vocabulary: int, observe: Callable[[Sequence[str], torch.Tensor], None]) -> Model:
    """The model as it is stored, in float32; `observe` sees what goes into the named matrices."""
    names: dict[int, str] = {}
    matrices: list[Matrix] = []  # kept, so that no two have one id

    def note(name: str, matrix: Matrix) -> Matrix:
        names[id(matrix)] = name
        matrices.append(matrix)
        return matrix

    def see(seen: Sequence[Matrix], x: torch.Tensor) -> None:
        observe([names[id(matrix)] for matrix in seen], x)

    weights = _unpack(opened, Numerics("float32", rounds_fp8=False, observe=see), note)
    return _make_model("observed", opened.config, weights, "float32", vocabulary, "float32")


def _make_model(
    name: str,
    config: LlamaConfig | HybridConfig,
    weights: LlamaWeights | HybridWeights,
    precision: str,
    vocabulary: int,
    kv_format: KvFormat,
    staging: Staging | None = None,
) -> Model:
    if (kv_format == "staged") != (staging is not None):
        raise ValueError("a cache in two stages, and no other, needs the rule of its stages")
    if isinstance(config, HybridConfig):
        assert isinstance(weights, HybridWeights)
        return HybridModel(
            name, config, weights, precision=precision, vocabulary=vocabulary, kv_format=kv_format, staging=staging
        )
    assert isinstance(weights, LlamaWeights)
    return LlamaModel(
        name, config, weights, precision=precision, vocabulary=vocabulary, kv_format=kv_format, staging=staging
    )


def load_on_gpu(
    opened: Opened,
    *,
    name: str,
    vocabulary: int,
    recipe: Recipe,
    invariant: bool = False,
    staging: Staging | None = None,
) -> Loaded:
    """`load_model` for the GPU of this machine. Raises `cuda.load.DeviceMissing` where there is none."""
    from inference_grpc.model.cuda.load import device_gates, find_device, load_cuda_hybrid, log_ways
    from kernels.tuning import read_splits

    device, config = find_device(), opened.config
    if not isinstance(config, HybridConfig):
        raise ModelFileError(f"{opened.checkpoint.path}: only {HYBRID_TYPES[0]} models run on cuda; use --device cpu.")
    _check_vocabulary(opened, vocabulary)
    gates = device_gates(device)
    model, formats = load_cuda_hybrid(
        opened.checkpoint,
        config,
        name=name,
        vocabulary=vocabulary,
        recipe=recipe,
        device=device,
        passed=lambda gate: gate in gates,
        invariant=invariant,
        splits=read_splits(gates.key),
        staging=staging,
    )
    log_ways(gates, model.ways)
    return Loaded(model, formats)


def _check_vocabulary(opened: Opened, vocabulary: int) -> None:
    if vocabulary > opened.config.vocabulary:
        path, rows = opened.checkpoint.path, opened.config.vocabulary
        raise ModelFileError(f"{path}: the tokenizer has {vocabulary} tokens, the embedding {rows}.")


def _read_weights(opened: Opened, recipe: Recipe, numerics: Numerics, cache: PackedCache | None, name: str) -> Kept:
    """As they were kept, or out of the checkpoint and then kept for the next start."""
    key = key_of(opened.checkpoint.path, [recipe, numerics]) if cache else ""
    kept = cache.read(name, key) if cache else None
    if kept is not None:
        return kept
    formats: Counter[str] = Counter()

    def convert(matrix_name: str, matrix: Matrix) -> Matrix:
        converted = recipe.convert(matrix_name, matrix)
        formats[converted.format] += 1
        return converted

    kept = Kept(_unpack(opened, numerics, convert), formats)
    if cache:
        cache.write(name, key, kept)
    return kept


def _unpack(opened: Opened, numerics: Numerics, convert: Convert) -> LlamaWeights | HybridWeights:
    if isinstance(opened.config, HybridConfig):
        return load_hybrid_weights(opened.checkpoint, opened.config, numerics, convert)
    return load_weights(opened.checkpoint, opened.config, numerics, convert)


def describe(recipe: Recipe, formats: Counter[str], numerics: Numerics, staging: Staging | None) -> str:
    """In one line, for the log and GetInfo: what the operator asked for and what it means on this device."""
    if recipe == AS_STORED and not formats.keys() & {"fp8", "fp8-blocks", "nvfp4"}:
        return numerics.product
    parts = [f"{count} {name}" for name, count in sorted(formats.items())]
    if formats["fp8"] or formats["fp8-blocks"]:
        parts.append("fp8 as W8A8" if numerics.rounds_fp8 else "fp8 as W8A16")
    if formats["nvfp4"]:
        parts.append("nvfp4 as W4A4" if numerics.rounds_nvfp4 else "nvfp4 as W4A16")
    return f"{recipe.name} ({', '.join([*parts, cache_format(recipe.kv, staging)])})"


def weights_sha256(path: Path) -> str:
    """Of a file, or of a folder's weights and configuration together: it names the weights on GetInfo."""
    if path.is_file():
        return _file_sha256(path)
    files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
    return hashlib.sha256("".join(f"{file.name} {_file_sha256(file)}\n" for file in files).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hf_config(path: Path, content: dict[str, Any]) -> LlamaConfig | HybridConfig:
    kind = content.get("model_type")
    if kind in HYBRID_TYPES:
        return read_hf_config(path, content)
    if kind in FAMILIES:
        return read_hf_dense_config(path, content)
    known = ", ".join(repr(name) for name in (*HYBRID_TYPES, *FAMILIES))
    raise ModelFileError(f"{path}: model_type is {kind!r}; this engine runs {known}.")
