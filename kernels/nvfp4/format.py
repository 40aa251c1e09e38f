"""NVFP4 in one canonical form, and the ways in and out of the conventions that checkpoints use.

Canonical: codes uint8 [N, K / 2] (element 2 i in the low nibble), scales e4m3 [N, K / 16], one fp32 multiplier per
row, so
that w[n, k] = multiplier[n] x scale[n, k // 16] x e2m1(code[n, k]), and optionally a multiplier for the activations. A
multiplier per row and not per matrix: matrices that are fused (q | k | v, gate | up) keep their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
E4M3_MAX = 448.0
LARGEST = E2M1_MAX * E4M3_MAX  # 2688
_GGUF_BLOCK_VALUES = 64
_GGUF_BLOCK_BYTES = 36


class BadCheckpoint(ValueError):
    """A stored tensor contradicts its convention; the message names the tensor's field and what was expected."""


@dataclass(frozen=True)
class Nvfp4Matrix:
    """A weight matrix [N, K] in canonical form."""

    codes: torch.Tensor  # uint8 [N, K / 2]
    scales: torch.Tensor  # float8_e4m3fn [N, K / 16]
    multiplier: torch.Tensor  # f32 [N]
    input_multiplier: float | None = None  # g_a of W4A4; None: weight-only

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 2

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.multiplier.nbytes

    def __post_init__(self) -> None:
        rows, half = self.codes.shape
        if self.codes.dtype != torch.uint8 or self.scales.dtype != torch.float8_e4m3fn:
            raise BadCheckpoint(
                f"NVFP4 needs uint8 codes and e4m3 scales, got {self.codes.dtype} and {self.scales.dtype}"
            )
        if half * 2 % GROUP or self.scales.shape != (rows, half * 2 // GROUP) or self.multiplier.shape != (rows,):
            raise BadCheckpoint(
                f"codes {tuple(self.codes.shape)}, scales {tuple(self.scales.shape)} and multiplier "
                f"{tuple(self.multiplier.shape)} do not describe one matrix with a scale for each {GROUP} values"
            )


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 code 0…15 of each value, ties to the even code, saturating at 6: PTX
    `cvt.rn.satfinite.e2m1x2.f32`."""
    magnitude = x.abs()
    code = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    # A tie goes to the code with mantissa bit 0, so every other boundary is exclusive.
    for boundary, inclusive in (
        (0.25, False),
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        code += (magnitude >= boundary) if inclusive else (magnitude > boundary)
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def decode_e2m1(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    table = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=dtype, device=codes.device)
    return table[codes.to(torch.int64)]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes [..., K] to bytes [..., K / 2], element 2 i in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def _per_row(value: torch.Tensor | float, rows: int, device: torch.device, field: str) -> torch.Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float32, device=device).flatten()
    if tensor.numel() not in (1, rows):
        raise BadCheckpoint(f"{field} has {tensor.numel()} values; a matrix of {rows} rows has 1 or {rows}")
    # A reciprocal slip is a factor of 10^5 or more; amax / 2688 of a real matrix is far below 1.
    if not bool(((tensor > 0) & (tensor < 1)).all()):
        raise BadCheckpoint(
            f"{field} as a multiplier must lie between 0 and 1, got {float(tensor.max()):g}: "
            "the convention is another one"
        )
    return tensor.expand(rows).contiguous()


def from_modelopt(
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_scale_2: torch.Tensor,
    input_scale: torch.Tensor | None = None,
) -> Nvfp4Matrix:
    """`weight` uint8 [N, K / 2], `weight_scale` e4m3 [N, K / 16], `weight_scale_2` = amax / 2688: all multiply."""
    return Nvfp4Matrix(
        weight,
        weight_scale,
        _per_row(weight_scale_2, weight.shape[0], weight.device, "weight_scale_2"),
        None if input_scale is None else float(_per_row(input_scale, 1, weight.device, "input_scale")),
    )


def from_compressed_tensors(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    input_global_scale: torch.Tensor | None = None,
) -> Nvfp4Matrix:
    """`weight_global_scale` = 2688 / amax: divides, like `input_global_scale`."""
    inverse = 1.0 / weight_global_scale.to(torch.float32)
    return Nvfp4Matrix(
        weight_packed,
        weight_scale,
        _per_row(inverse, weight_packed.shape[0], weight_packed.device, "1 / weight_global_scale"),
        None
        if input_global_scale is None
        else float(
            _per_row(1.0 / input_global_scale.to(torch.float32), 1, weight_packed.device, "1 / input_global_scale")
        ),
    )


def from_gguf(blocks: torch.Tensor, scale: torch.Tensor | float, input_scale: float | None = None) -> Nvfp4Matrix:
    """ggml type 40: uint8 [N, K / 64, 36], four scale bytes and 32 code bytes a block; `scale` is the tensor's sidecar.

    In each 8 bytes of codes the low nibbles are values 0 to 7 and the high ones 8 to 15. Scale bytes are e4m3; 0x7F
    means zero.
    """
    rows = blocks.shape[0]
    raw_scales = blocks[..., :4]
    scales = (
        torch.where(raw_scales == 0x7F, torch.zeros_like(raw_scales), raw_scales).contiguous().view(torch.float8_e4m3fn)
    )
    quarters = blocks[..., 4:].reshape(*blocks.shape[:-1], 4, 8)
    values = torch.cat([quarters & 15, quarters >> 4], dim=-1)  # [N, K / 64, 4, 16]
    return Nvfp4Matrix(
        pack_nibbles(values.reshape(rows, -1)),
        scales.reshape(rows, -1),
        _per_row(scale, rows, blocks.device, "scale"),
        input_scale,
    )


def to_gguf(matrix: Nvfp4Matrix) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks and the scale sidecar. Scale bytes are copied: re-encoding them by value would send 256 and more to
    448."""
    rows, columns = matrix.shape
    if columns % _GGUF_BLOCK_VALUES:
        raise ValueError(f"GGUF stores NVFP4 in blocks of {_GGUF_BLOCK_VALUES} values; {columns} columns do not divide")
    if not bool((matrix.multiplier == matrix.multiplier[0]).all()):
        raise ValueError("GGUF has one scale a matrix; split a fused matrix before it is exported")
    values = unpack_nibbles(matrix.codes).view(rows, columns // 64, 4, 2, 8)
    codes = (values[..., 0, :] | (values[..., 1, :] << 4)).flatten(-2)
    scales = matrix.scales.view(torch.uint8).view(rows, columns // 64, 4)
    return torch.cat([scales, codes], dim=-1), matrix.multiplier[:1].clone()


def stack(*matrices: Nvfp4Matrix) -> Nvfp4Matrix:
    """Matrices over the same input as one, rows in order. Every row keeps its multiplier; activation multipliers must
    agree."""
    inputs = {m.input_multiplier for m in matrices}
    if len(inputs) > 1:
        raise ValueError(
            f"cannot fuse matrices whose activations have different multipliers: {sorted(map(str, inputs))}"
        )
    scales = torch.cat([m.scales.view(torch.uint8) for m in matrices]).view(torch.float8_e4m3fn)
    return Nvfp4Matrix(
        torch.cat([m.codes for m in matrices]), scales, torch.cat([m.multiplier for m in matrices]), inputs.pop()
    )


def swizzle_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales [R, C] in the order that cuBLASLt, CUTLASS and tcgen05 read, flat; padded with zeros to 128 rows and 4
    columns."""
    rows, columns = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales.view(torch.uint8)
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)


def unswizzle_scales(flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    tile_rows, tile_columns = -(-rows // 128), -(-columns // 4)
    tiles = flat.view(torch.uint8).view(tile_rows, tile_columns, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(tile_rows * 128, tile_columns * 4)[:rows, :columns].contiguous().view(flat.dtype)
