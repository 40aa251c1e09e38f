"""quantize: a Hugging Face folder with its matrices in the formats of a recipe, in modelopt's names and conventions.

What the recipe keeps is copied bit by bit. The target appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Fp8, Matrix, Nvfp4, Plain
from inference_grpc.model.load import matrix_names, open_checkpoint
from inference_grpc.model.recipe import Recipe
from inference_grpc.model.safetensors import write_folder
from inference_grpc.tools.calibrate import calibrate, with_input_scale
from inference_grpc.tools.progress import Progress


def quantize_folder(
    source: Path, target: Path, recipe: Recipe, progress: Progress, calibration: Path | None = None
) -> None:
    """`calibration`: a text from which static scales of activations are taken (calibrate.py).

    Raises `ModelFileError` naming what is wrong; then nothing is left under `target`.
    """
    if target.exists():
        raise ModelFileError(f"{target}: is there already; name a new folder.")
    opened = open_checkpoint(source)
    if not isinstance(opened.checkpoint, HfCheckpoint):
        raise ModelFileError(f"{source}: a GGUF file is not quantized again; start from the model's folder.")
    inputs = {} if calibration is None else calibrate(source, calibration, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        formats: dict[str, str] = {}
        names = matrix_names(opened)
        write_folder(scratch, _tensors(opened.checkpoint, names, recipe, formats, inputs, progress))
        _write_config(scratch, opened.checkpoint.config, recipe, formats)
        _copy_rest(source, scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def matrix_tensors(name: str, matrix: Matrix) -> dict[str, torch.Tensor]:
    """A matrix as modelopt would store it under `name`."""
    if isinstance(matrix, Nvfp4):
        stored = matrix.matrix
        tensors = {
            f"{name}.weight": stored.codes,
            f"{name}.weight_scale": stored.scales,
            f"{name}.weight_scale_2": stored.multiplier[0].clone(),
        }
        if stored.input_multiplier is not None:
            tensors[f"{name}.input_scale"] = torch.tensor(stored.input_multiplier)
        return tensors
    if isinstance(matrix, Fp8):
        tensors = {f"{name}.weight": matrix.values, f"{name}.weight_scale": matrix.scale[:, None]}
        if matrix.input_scale is not None:
            tensors[f"{name}.input_scale"] = torch.tensor(matrix.input_scale)
        return tensors
    assert isinstance(matrix, Plain), "recipes make no other format"
    return {f"{name}.weight": matrix.values}


def _tensors(
    checkpoint: HfCheckpoint,
    matrices: list[str],
    recipe: Recipe,
    formats: dict[str, str],
    inputs: dict[str, float],
    progress: Progress,
) -> Iterator[tuple[str, torch.Tensor]]:
    names = [*matrices, *(name for name in checkpoint.names() if name not in set(matrices))]
    for done, name in enumerate(names, 1):
        parts = checkpoint.stored_parts(name)
        if name in matrices:
            matrix = checkpoint.matrix(name, *checkpoint.matrix_shape(name))
            converted = recipe.convert(name, matrix)
            formats[name] = converted.format
            if converted is not matrix:
                first = next(stored for stored in parts if stored.endswith((".weight", ".weight_packed")))
                scaled = with_input_scale(converted, inputs.get(name))
                parts = matrix_tensors(first.rpartition(".")[0], scaled)
        progress.step(done, len(names), f"{name} {formats.get(name, '')}")
        yield from parts.items()


def _write_config(folder: Path, content: dict[str, Any], recipe: Recipe, formats: dict[str, str]) -> None:
    algorithms = {"nvfp4": "NVFP4", "fp8": "FP8"}
    layers = {name: {"quant_algo": algorithms[kind]} for name, kind in formats.items() if kind in algorithms}
    kept = sorted(name for name, kind in formats.items() if kind not in algorithms)
    kinds = {layer["quant_algo"] for layer in layers.values()}
    content = dict(content)
    if layers:
        content["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": kinds.pop() if len(kinds) == 1 else "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8" if recipe.kv == "fp8" else None,
            "quantized_layers": layers,
            "exclude_modules": kept,
            "producer": {"name": "tokenfactory", "recipe": recipe.name},
        }
    (folder / "config.json").write_text(json.dumps(content, indent=1))


def _copy_rest(source: Path, target: Path) -> None:
    """Tokenizer, template, generation defaults."""
    for file in sorted(source.iterdir()):
        is_weights = file.name.endswith((".safetensors", ".safetensors.index.json", ".bin", ".gguf"))
        if file.is_file() and not is_weights and file.name not in ("config.json", "hf_quant_config.json"):
            shutil.copyfile(file, target / file.name)
