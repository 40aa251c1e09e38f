"""From a checkpoint to the hybrid on the GPU of this machine: which ways are on, then the weights in their form."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import torch

from inference_grpc.model.checkpoint import Checkpoint
from inference_grpc.model.cuda.matrices import MatrixMaker
from inference_grpc.model.cuda.model import CudaHybridModel, chunk_misfit, misfit, staged_misfit
from inference_grpc.model.cuda.weights import load_device_weights
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Matrix, Plain
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.memory import KvFormat, cache_format
from inference_grpc.model.recipe import Recipe
from kernels.dispatch import capability
from kernels.gates import Gates, key_of, read_gates
from kernels.hybrid_step import Splits
from kernels.paged_attention.stage import Staging
from kernels.paths import Choice, choose

logger = logging.getLogger(__name__)


class DeviceMissing(Exception):
    """There is no GPU that could run the model; the text says what to do."""


def find_device() -> torch.device:
    """The GPU. Raises `DeviceMissing`."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.version.cuda is None:
        raise DeviceMissing(
            f"this is torch {torch.__version__}, a build without CUDA; install the CUDA build of the same version "
            "(pip install torch --index-url https://download.pytorch.org/whl/cu130), or use --device cpu."
        )
    raise DeviceMissing(
        f"torch {torch.__version__} sees no NVIDIA GPU; check that nvidia-smi lists one and that its driver is for "
        f"CUDA {torch.version.cuda} or newer, or use --device cpu."
    )


def device_gates(device: torch.device) -> Gates:
    """What has been proved on this chip with these versions."""
    return read_gates(key_of(torch.cuda.get_device_name(device), capability(device)))


def load_cuda_hybrid(
    checkpoint: Checkpoint,
    config: HybridConfig,
    *,
    name: str,
    vocabulary: int,
    recipe: Recipe,
    device: torch.device,
    passed: Callable[[str], bool],
    invariant: bool = False,
    splits: Splits | None = None,
    staging: Staging | None = None,
) -> tuple[CudaHybridModel, Counter[str]]:
    """The model, and its matrices by format. The log says which way each kind of layer takes and why one is off.
    `staging`: the rule, where the recipe has a cache in two stages; where that way is off, all pages are FP8."""
    if recipe.activations == "narrow":
        raise ModelFileError(
            f"the recipe {recipe.name!r} has activations = 'narrow'; on cuda weights meet 16-bit activations: 'auto'."
        )
    formats: Counter[str] = Counter()

    def convert(matrix_name: str, matrix: Matrix) -> Matrix:
        if isinstance(matrix, Plain):  # narrowed here, where that takes moments
            matrix = Plain(matrix.values.to(device))
        converted = recipe.convert(matrix_name, matrix)
        formats[converted.format] += 1
        return converted

    unfit = {"misfit": misfit(config), "chunk_misfit": chunk_misfit(config)}
    kinds_wanted = recipe_kinds(recipe)
    if staging is not None:
        kinds_wanted.add("three_bit")
        unfit["staged_misfit"] = staged_misfit(config, staging)
    ways = choose(capability(device), kinds_wanted, passed, **unfit)
    if "staged" not in ways:
        staging = None
    maker = MatrixMaker(device, packed="packed" in ways, invariant=invariant)
    weights = load_device_weights(checkpoint, config, convert, maker, device)
    kv_format: KvFormat = "fp8" if recipe.kv == "staged" and staging is None else recipe.kv
    cache = "bf16" if kv_format == "float32" and "fused" in ways else kv_format
    kinds = ", ".join(f"{count} {format_}" for format_, count in sorted(formats.items()))
    model = CudaHybridModel(
        name,
        config,
        weights,
        ways,
        precision=f"{recipe.name} ({kinds}, weights only, {cache_format(cache, staging)})",
        vocabulary=vocabulary,
        kv_format=kv_format,
        invariant=invariant,
        splits=splits,
        staging=staging,
    )
    return model, formats


def recipe_kinds(recipe: Recipe) -> set[str]:
    """Kinds of products that the recipe may lead to; a matrix that it keeps may be of any."""
    kinds: set[str] = {"bf16"}
    for _, format_ in recipe.rules:
        kinds |= {"nvfp4", "fp8"} if format_ == "keep" else {format_} & {"nvfp4", "fp8"}
    return kinds if recipe.rules else {"bf16", "fp8", "nvfp4"}


def log_ways(gates: Gates, ways: Choice) -> None:
    """The table as it is on this device, one line a row."""
    logger.info("device_ways key=%s gates_file=%s", gates.key, gates.path)
    for line in ways.lines:
        logger.info("way %s", line)
    if any("has not passed here" in line for line in ways.lines):
        logger.warning("ways_off: python -m kernels.gates proves them on this machine; until then they stay off")
