"""Recipes: in which format each matrix of a model is kept, and in which the keys and values. One file for all tools.

A recipe is TOML. The first rule whose `match` (a shell pattern over names as `layers.3.mlp.up_proj`) fits a matrix
decides its format: `keep` (as the checkpoint stores it), `f32`, `bf16`, `fp8` or `nvfp4`.

    kv = "fp8"              # or "float32"
    activations = "auto"    # what a device does best; "narrow": round them to the weights' format; "float": never

    [[rules]]
    match = "*.mlp.*"
    format = "nvfp4"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, cast, get_args

import torch

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Matrix, Nvfp4, Plain
from inference_grpc.model.linear import Numerics, Precision
from inference_grpc.model.memory import KvFormat
from inference_grpc.model.quantization import quantize_fp8
from kernels.nvfp4.reference import quantize as quantize_nvfp4

Format = Literal["keep", "f32", "bf16", "fp8", "nvfp4"]
Activations = Literal["auto", "narrow", "float"]
# What is sensitive or too small to matter stays bf16: embedding, gates of the recurrence, the draft layer.
_HIGH: Final = ("embed_tokens", "*.in_proj_a", "*.in_proj_b", "mtp.*")
# How narrow weights meet activations, by device: (fp8, nvfp4) round activations to the weights' format or not.
# CPUs have no narrow arithmetic. FP8 is emulated, since W8A8 is what the baseline means; NVFP4 is weights only.
_ROUNDING: Final = {"cpu": (True, False)}


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    rules: tuple[tuple[str, Format], ...]
    kv: KvFormat = "float32"
    activations: Activations = "auto"

    def format_of(self, name: str) -> Format:
        return next((format_ for pattern, format_ in self.rules if fnmatchcase(name, pattern)), "keep")

    def convert(self, name: str, matrix: Matrix) -> Matrix:
        """The matrix in the recipe's format; the same object where it has it already."""
        wanted = self.format_of(name)
        if wanted == "keep" or wanted == matrix.format:
            return matrix
        values = matrix.to_float()
        if wanted == "fp8":
            return quantize_fp8(values)
        if wanted == "nvfp4":
            try:
                return Nvfp4(quantize_nvfp4(values, method="mse"))
            except ValueError as error:
                raise ModelFileError(
                    f"{name} cannot be NVFP4 ({error}); give it another format in the recipe."
                ) from error
        return Plain(values.to(torch.bfloat16 if wanted == "bf16" else torch.float32))

    def numerics(self, device: str, product: Precision) -> Numerics:
        fp8, nvfp4 = _ROUNDING[device]
        if self.activations != "auto":
            fp8 = nvfp4 = self.activations == "narrow"
        return Numerics(product, rounds_fp8=fp8, rounds_nvfp4=nvfp4)


AS_STORED: Final = Recipe("as stored", ())
_BUILT_IN: Final = {
    "auto": AS_STORED,
    "bf16": Recipe("bf16", (("*", "bf16"),)),
    "fp8": Recipe("fp8", (*((name, "bf16") for name in (*_HIGH, "lm_head")), ("*", "fp8")), kv="fp8"),
    "nvfp4": Recipe("nvfp4", (*((name, "bf16") for name in _HIGH), ("*", "nvfp4")), kv="fp8"),
}


def read_recipe(name: str) -> Recipe:
    """A built-in recipe by name, or a TOML file by path. Raises `ModelFileError` naming what is wrong."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    path = Path(name)
    if not path.is_file():
        raise ModelFileError(f"the recipe {name!r} is neither one of {', '.join(_BUILT_IN)} nor a TOML file.")
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelFileError(f"{path}: cannot be read as TOML ({error}).") from error
    unknown = content.keys() - {"kv", "activations", "rules"}
    if unknown:
        raise ModelFileError(f"{path}: the key {min(unknown)!r} is not known; known are kv, activations and rules.")
    listed = content.get("rules", [])
    if not isinstance(listed, list):
        raise ModelFileError(f"{path}: rules must be a list of tables, [[rules]].")
    rules = []
    for number, rule in enumerate(listed, 1):
        if not isinstance(rule, dict) or rule.keys() != {"match", "format"}:
            raise ModelFileError(f"{path}: rule {number} must have exactly 'match' and 'format'.")
        rules.append((str(rule["match"]), _one_of(path, f"rule {number}: format", rule["format"], get_args(Format))))
    kv = _one_of(path, "kv", content.get("kv", "float32"), get_args(KvFormat))
    activations = _one_of(path, "activations", content.get("activations", "auto"), get_args(Activations))
    return Recipe(
        path.stem,
        cast("tuple[tuple[str, Format], ...]", tuple(rules)),
        cast(KvFormat, kv),
        cast(Activations, activations),
    )


def _one_of(path: Path, key: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ModelFileError(f"{path}: {key} is {value!r}; use one of {', '.join(allowed)}.")
    return str(value)
