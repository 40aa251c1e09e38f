"""A checkpoint: the weights of a model under one set of names, whatever container and number formats they lie in.

Names are those of Hugging Face without their prefix: `embed_tokens`, `layers.0.mlp.up_proj`, `norm`, `lm_head`,
`mtp.fc`. The order of rows and columns is theirs too; `gguf_checkpoint.py` undoes what GGUF converters change. How a
matrix is stored is decided by the tensors that are there, never by what a configuration says of them: published files
differ.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import FP8_BLOCK, Fp8, Fp8Blocks, Matrix, Nvfp4, Plain
from inference_grpc.model.memory import KvFormat
from inference_grpc.model.safetensors import SafetensorsFolder, read_json
from kernels.nvfp4.format import GROUP, BadCheckpoint, from_compressed_tensors, from_modelopt

_PREFIXES: Final = ("model.language_model.", "language_model.model.", "model.")
_TOP_LEVEL: Final = ("lm_head", "mtp.")
# Parts of multimodal checkpoints that a text engine does not run, and scales of a cache that it scales itself.
_IGNORED_PARTS: Final = ("visual.", "vision_tower.", "audio_tower.", "rotary_emb.inv_freq")
_IGNORED_ENDS: Final = (".k_scale", ".v_scale", ".q_scale", ".k_proj.output_scale", ".v_proj.output_scale", ".kv_scale")
_PART_ENDS: Final = (
    ".weight", ".weight_packed", ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".weight_global_scale",
    ".input_scale", ".input_global_scale",
)  # fmt: skip
_FORMATS: Final = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.uint8: "nvfp4",
}
_METHODS: Final = ("modelopt", "compressed-tensors", "fp8", "modelopt_fp4", "modelopt_mixed")


@dataclass(frozen=True, slots=True)
class MatrixSize:
    """What the headers say of a stored matrix."""

    rows: int
    columns: int
    format: str  # as `Matrix.format`, or a type of GGUF blocks
    nbytes: int  # with its scales


class Checkpoint(Protocol):
    """Readers raise `ModelFileError` naming file and tensor for one that is missing, misshapen or not finite."""

    path: Path
    # Whether the rows of query and key heads are ordered for rotation in pairs (0, 1), (2, 3), …; else in halves.
    rotates_pairs: bool
    # How keys and values are to be kept, as far as the files say.
    kv: KvFormat

    def __contains__(self, name: str) -> bool: ...

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        """A small tensor in float32."""

    def matrix(self, name: str, rows: int, columns: int) -> Matrix: ...

    def size(self, name: str) -> MatrixSize:
        """Of a matrix, without reading it."""

    def check_all_read(self) -> None:
        """A tensor that nobody read means a model that would be computed wrongly."""


class HfCheckpoint:
    """A Hugging Face folder: safetensors, config.json, and hf_quant_config.json where modelopt left one."""

    rotates_pairs = False

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config = read_json(folder / "config.json")
        declared = _quantization(folder, self.config)
        _check_method(folder, declared)
        self.kv: KvFormat = "fp8" if _has_fp8_cache(declared) else "float32"
        self._tensors = SafetensorsFolder(folder)
        self._stored = {_canonical(name): name for name in self._tensors.tensors}
        self._unread = {name for name in self._stored if not _is_ignored(name)}

    def __contains__(self, name: str) -> bool:
        return any(f"{name}{end}" in self._stored for end in ("", ".weight", ".weight_packed"))

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        stored = name if name in self._stored else f"{name}.weight"
        values = self._read(stored).float()
        if tuple(values.shape) != shape:
            # A depthwise convolution carries a middle axis of one.
            if values.numel() != torch.Size(shape).numel() or [n for n in values.shape if n > 1] != [
                n for n in shape if n > 1
            ]:
                raise self._misshapen(stored, tuple(values.shape), shape)
            values = values.reshape(shape)
        return self._finite(stored, values)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        if f"{name}.weight_packed" in self._stored:
            return self._compressed_nvfp4(name, rows, columns)
        weight = self._read(f"{name}.weight")
        if weight.dtype == torch.uint8:
            return self._modelopt_nvfp4(name, weight, rows, columns)
        if tuple(weight.shape) != (rows, columns):
            raise self._misshapen(f"{name}.weight", tuple(weight.shape), (rows, columns))
        if weight.dtype == torch.float8_e4m3fn:
            return self._fp8(name, weight)
        if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ModelFileError(
                f"{self._place(f'{name}.weight')} is stored as {weight.dtype}, which is not supported."
            )
        self._finite(f"{name}.weight", weight)
        return Plain(weight)

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """The rows and columns that a matrix of the folder has, however it is stored."""
        stored = f"{name}.weight_packed" if f"{name}.weight_packed" in self._stored else f"{name}.weight"
        if stored not in self._stored:
            raise ModelFileError(f"{self._place(stored)} is missing.")
        info = self._tensors.tensors[self._stored[stored]]
        if len(info.shape) != 2:
            raise ModelFileError(f"{self._place(stored)} has shape {list(info.shape)}; a matrix has two sides.")
        return info.shape[0], info.shape[1] * (2 if info.dtype == torch.uint8 else 1)

    def size(self, name: str) -> MatrixSize:
        rows, columns = self.matrix_shape(name)
        parts = [self._tensors.tensors[self._stored[part]] for part in self._parts[name]]
        widest = max(parts, key=lambda part: part.nbytes)
        format_ = "fp8-blocks" if f"{name}.weight_scale_inv" in self._stored else _FORMATS.get(widest.dtype, "unknown")
        return MatrixSize(rows, columns, format_, sum(part.nbytes for part in parts))

    def stored_parts(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that make up one matrix or vector, as they are stored, by their names in the folder."""
        return {self._stored[part]: self._tensors.read(self._stored[part]) for part in self._parts[name]}

    def names(self) -> list[str]:
        """What matrices and vectors there are, by canonical names."""
        return sorted(self._parts)

    @functools.cached_property
    def _parts(self) -> dict[str, list[str]]:
        """The canonical names of tensors, by the matrix or vector that they belong to."""
        parts: dict[str, list[str]] = {}
        for stored in sorted(self._stored):
            owner = next((stored.removesuffix(end) for end in _PART_ENDS if stored.endswith(end)), stored)
            parts.setdefault(owner, []).append(stored)
        return parts

    def check_all_read(self) -> None:
        if self._unread:
            name = min(self._unread)
            raise ModelFileError(
                f"{self._place(name)} has no place in the model that config.json describes "
                f"({len(self._unread)} such tensors); it would be computed wrongly."
            )

    def _fp8(self, name: str, weight: torch.Tensor) -> Matrix:
        rows, columns = weight.shape
        self._finite(f"{name}.weight", weight)
        if f"{name}.weight_scale_inv" in self._stored:
            scale_name = f"{name}.weight_scale_inv"
            blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
            return Fp8Blocks(weight, self._scales(scale_name, self._read(scale_name).float(), blocks))
        scale_name = f"{name}.weight_scale"
        scale = self._read(scale_name).float().flatten()
        if scale.numel() == 1:
            scale = scale.expand(rows).clone()
        input_scale = self._scalar(f"{name}.input_scale")
        return Fp8(weight, self._scales(scale_name, scale, (rows,)), input_scale)

    def _modelopt_nvfp4(self, name: str, codes: torch.Tensor, rows: int, columns: int) -> Nvfp4:
        scales = self._nvfp4_scales(name, codes, rows, columns)
        globals_ = self._read(f"{name}.weight_scale_2"), self._optional(f"{name}.input_scale")
        try:
            return Nvfp4(from_modelopt(codes, scales, *globals_))
        except BadCheckpoint as error:
            raise ModelFileError(f"{self._place(f'{name}.weight')}: {error}.") from error

    def _compressed_nvfp4(self, name: str, rows: int, columns: int) -> Nvfp4:
        codes = self._read(f"{name}.weight_packed")
        scales = self._nvfp4_scales(name, codes, rows, columns)
        globals_ = self._read(f"{name}.weight_global_scale"), self._optional(f"{name}.input_global_scale")
        try:
            return Nvfp4(from_compressed_tensors(codes, scales, *globals_))
        except BadCheckpoint as error:
            raise ModelFileError(f"{self._place(f'{name}.weight_packed')}: {error}.") from error

    def _nvfp4_scales(self, name: str, codes: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        if codes.dtype != torch.uint8 or columns % GROUP or tuple(codes.shape) != (rows, columns // 2):
            stored = f"{name}.weight_packed" if f"{name}.weight_packed" in self._stored else f"{name}.weight"
            raise self._misshapen(stored, tuple(codes.shape), (rows, columns // 2))
        scale_name = f"{name}.weight_scale"
        scales = self._read(scale_name)
        if scales.dtype != torch.float8_e4m3fn:
            raise ModelFileError(f"{self._place(scale_name)} is stored as {scales.dtype}; NVFP4 scales are e4m3.")
        return self._scales(scale_name, scales, (rows, columns // GROUP))

    def _optional(self, name: str) -> torch.Tensor | None:
        return self._finite(name, self._read(name).float()) if name in self._stored else None

    def _scales(self, name: str, scales: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(scales.shape) != shape:
            raise self._misshapen(name, tuple(scales.shape), shape)
        return self._finite(name, scales)

    def _scalar(self, name: str) -> float | None:
        if name not in self._stored:
            return None
        value = self._finite(name, self._read(name).float())
        if value.numel() != 1 or float(value) <= 0:
            raise ModelFileError(f"{self._place(name)} must be one positive number.")
        return float(value)

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._stored:
            raise ModelFileError(f"{self._place(name)} is missing.")
        self._unread.discard(name)
        return self._tensors.read(self._stored[name])

    def _finite(self, name: str, values: torch.Tensor) -> torch.Tensor:
        numbers = values.float() if values.dtype == torch.float8_e4m3fn else values
        if not bool(torch.isfinite(numbers).all()):
            raise ModelFileError(f"{self._place(name)} holds values that are not finite; the file is damaged.")
        return values

    def _misshapen(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ModelFileError:
        return ModelFileError(f"{self._place(name)} has shape {list(shape)}, expected {list(expected)}.")

    def _place(self, name: str) -> str:
        stored = self._stored.get(name)
        file = self._tensors.tensors[stored].file if stored else self.path
        return f"{file}: tensor {stored or name!r}"


def _canonical(name: str) -> str:
    if name.startswith(_TOP_LEVEL):
        return name
    return next((name[len(prefix) :] for prefix in _PREFIXES if name.startswith(prefix)), name)


def _is_ignored(name: str) -> bool:
    return any(part in name for part in _IGNORED_PARTS) or name.endswith(_IGNORED_ENDS)


def _quantization(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of it, and what only modelopt's own file says: some keep the cache's format there alone."""
    declared = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config") or {}
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return dict(declared)
    own = read_json(path).get("quantization")
    return {"quant_method": "modelopt"} | (own if isinstance(own, dict) else {}) | declared


def _has_fp8_cache(declared: dict[str, Any]) -> bool:
    scheme = declared.get("kv_cache_scheme")
    is_scheme_fp8 = isinstance(scheme, dict) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return is_scheme_fp8 or declared.get("kv_cache_quant_algo") == "FP8"


def _check_method(folder: Path, declared: dict[str, Any]) -> None:
    """Another method may store integers that look like ours and mean something else."""
    method = declared.get("quant_method")
    if method is not None and method not in _METHODS:
        raise ModelFileError(
            f"{folder / 'config.json'}: quant_method is {method!r}; supported are {', '.join(sorted(_METHODS))}."
        )
