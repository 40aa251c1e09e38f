"""How a rotary embedding is stretched beyond the context it was trained on: linear, llama3 and YaRN.

Text alone: where a configuration has sections for time, height and width (mrope), a text's three positions are equal,
and the sections change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import torch

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.gguf import GgufError, GgufFile

RopeKind = Literal["default", "linear", "llama3", "yarn"]
_DEFAULT_BETAS: Final = (32.0, 1.0)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    kind: RopeKind
    factors: tuple[float, ...]  # each rotation frequency is divided by its factor
    context_tokens: int  # that it reaches
    magnitude: float = 1.0  # of the rotated queries and keys
    factor: float = 1.0  # of the context
    original_tokens: int = 0  # YaRN: the context before it was stretched
    is_standard: bool = True  # YaRN: whether all but factor and original context is as the paper has it

    def __str__(self) -> str:
        if self.kind == "yarn":
            return f"yarn, {self.original_tokens} tokens stretched {self.factor:g} times"
        return f"linear, stretched {self.factor:g} times" if self.kind == "linear" else self.kind

    def frequencies(self, base: float) -> torch.Tensor:
        """float64 [factors]: the angle of each pair of dimensions from one position to the next."""
        exponents = torch.arange(len(self.factors), dtype=torch.float64) / len(self.factors)
        return base**-exponents / torch.tensor(self.factors, dtype=torch.float64)


def read_hf_rope(path: Path, rope: dict[str, Any], *, base: float, dims: int, trained: int) -> RopeScaling:
    """`rope`: rope_parameters or rope_scaling of config.json; `dims`: of a head, that are rotated; `trained`:
    max_position_embeddings. Raises `ModelFileError` naming the key."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "mrope":  # the sections of the default
        kind = "default"
    if kind not in get_args(RopeKind):
        known = ", ".join(get_args(RopeKind))
        raise ModelFileError(f"{path}: rope_type is {kind!r}; supported are {known}.")

    def number(key: str, default: float | None = None) -> float:
        value = rope.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelFileError(f"{path}: {key} of rope_type {kind!r} is {rope.get(key)!r}; it must be positive.")
        return float(value)

    return _scaling(cast(RopeKind, kind), number, rope, base=base, dims=dims, trained=trained)


def read_gguf_rope(file: GgufFile, family: str, *, base: float, dims: int, trained: int) -> RopeScaling:
    """From the metadata. Raises `GgufError` naming the key."""
    prefix = f"{family}.rope.scaling."

    def number(key: str, default: float | None = None) -> float:
        value = file.require(prefix + key) if default is None else file.metadata.get(prefix + key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise GgufError(f"{file.path}: {prefix}{key} is {str(value)[:40]}; it must be positive.")
        return float(value)

    kind = file.metadata.get(f"{prefix}type", "none")
    if kind == "none":
        return RopeScaling("default", (1.0,) * (dims // 2), trained)
    if kind == "linear":
        factor = number("factor")
        return RopeScaling("linear", (factor,) * (dims // 2), trained, factor=factor)
    if kind != "yarn":
        raise GgufError(f"{file.path}: {prefix}type is {kind!r}; supported are none, linear and yarn.")
    for key, wanted in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if file.metadata.get(prefix + key, wanted) not in (wanted, -1.0):  # -1: left to the reader
            raise GgufError(f"{file.path}: {prefix}{key} is {file.metadata[prefix + key]}; supported is {wanted}.")
    factor = number("factor")
    return yarn(
        factor=factor,
        original=int(number("original_context_length", trained)),
        base=base,
        dims=dims,
        trained=trained,
        betas=(number("yarn_beta_fast", _DEFAULT_BETAS[0]), number("yarn_beta_slow", _DEFAULT_BETAS[1])),
        magnitude=_magnitude(factor) * number("yarn_attn_factor", number("attn_factor", 1.0)),
    )


def gguf_values(rope: RopeScaling, family: str) -> dict[str, Any]:
    """The metadata that `read_gguf_rope` makes it of again. Raises `ValueError` for what GGUF cannot say."""
    prefix = f"{family}.rope.scaling."
    if rope.kind == "default":
        return {}
    if rope.kind == "llama3" or not rope.is_standard:
        raise ValueError(f"{rope.kind} factors of this kind cannot be exported; serve the folder")
    values: dict[str, Any] = {f"{prefix}type": rope.kind, f"{prefix}factor": rope.factor}
    return values | ({f"{prefix}original_context_length": rope.original_tokens} if rope.kind == "yarn" else {})


def _scaling(
    kind: RopeKind, number: Callable[..., float], rope: dict[str, Any], *, base: float, dims: int, trained: int
) -> RopeScaling:
    if kind == "yarn":
        original = int(number("original_max_position_embeddings", trained))
        factor = number("factor", max(trained / original, 1.0))
        mscale, all_dims = number("mscale", 1.0), number("mscale_all_dim", 1.0)
        has_both = bool(rope.get("mscale")) and bool(rope.get("mscale_all_dim"))
        magnitude = _magnitude(factor, mscale) / _magnitude(factor, all_dims) if has_both else _magnitude(factor)
        return yarn(
            factor=factor,
            original=original,
            base=base,
            dims=dims,
            trained=trained,
            betas=(number("beta_fast", _DEFAULT_BETAS[0]), number("beta_slow", _DEFAULT_BETAS[1])),
            magnitude=number("attention_factor", magnitude),
            truncates=bool(rope.get("truncate", True)),
        )
    if kind == "llama3":
        return RopeScaling(kind, _llama3_factors(number, base, dims), trained)
    factor = number("factor") if kind == "linear" else 1.0
    return RopeScaling(kind, (factor,) * (dims // 2), trained, factor=factor)


def yarn(
    *,
    factor: float,
    original: int,
    base: float,
    dims: int,
    trained: int,
    betas: tuple[float, float] = _DEFAULT_BETAS,
    magnitude: float | None = None,
    truncates: bool = True,
) -> RopeScaling:
    """Waves that turn often within the original context stay, slow ones are stretched by `factor`, those between by
    degrees; and the magnitude that makes up for the flatter softmax."""

    def dimension(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(betas[0]), dimension(betas[1])
    if truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = [min(max((n - low) / (high - low or 0.001), 0.0), 1.0) for n in range(dims // 2)]
    standard = _magnitude(factor)
    found = standard if magnitude is None else magnitude
    return RopeScaling(
        "yarn",
        tuple(1 / (share / factor + 1 - share) for share in ramp),
        max(trained, int(original * factor)),
        magnitude=found,
        factor=factor,
        original_tokens=original,
        is_standard=betas == _DEFAULT_BETAS and math.isclose(found, standard) and truncates,
    )


def _magnitude(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3_factors(number: Callable[..., float], base: float, dims: int) -> tuple[float, ...]:
    """Long waves are stretched by `factor`, short ones not, those between by degrees."""
    factor, low, high = number("factor"), number("low_freq_factor"), number("high_freq_factor")
    original = number("original_max_position_embeddings")
    factors = []
    for pair in range(dims // 2):
        turns = original * base ** (-2 * pair / dims) / (2 * math.pi)  # of the wave over the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)
