"""fbgemm's float16 product called directly, on packed weights whose memory is ours.

torch offers the same kernels as `quantized::linear_dynamic_fp16`, but packs one value at a time (seconds for a small
model, at every start) into memory that cannot be saved. The format is plain, fbgemm's header states it, and torch
exports the product: so weights are packed here by two copies of whole tensors, and may be mapped from a file.

This rests on the layout of one C++ class, so it is used only with the release of torch it was written for, on the one
platform tried, and only after a first product and a first packed matrix have come out equal to torch's, bit by bit.
Everywhere else torch's own operator is used, with the same results.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

logger = logging.getLogger(__name__)

TORCH_RELEASE: Final = "2.13.0"
_LIBRARY: Final = "libtorch_cpu.so"
_CLASS: Final = "N6fbgemm17PackedGemmMatrixBItNS_13TypeConverterItEEE"
_CONSTRUCT: Final = f"_Z{_CLASS}C1ENS_11matrix_op_tEiifPKfi"
_MULTIPLY: Final = (
    "_ZN6fbgemm18cblas_gemm_computeItEEvNS_11matrix_op_tEiPKfRKNS_17PackedGemmMatrixBIT_NS_13TypeConverterIS5_EEEEfPfii"
)
_TRANSPOSE, _PLAIN = 1, 0
_ALIGNMENT: Final = 64
_BLOCK_ROWS: Final = 512
_FLOAT16_MAX: Final = 65504.0


class _Matrix(ctypes.Structure):
    """`fbgemm::PackedGemmMatrixB<float16>` (fbgemm/FbgemmPackMatrixB.h)."""

    _fields_ = (
        ("rows", ctypes.c_int),  # of W^T: the inputs of the layer
        ("columns", ctypes.c_int),
        ("block_rows", ctypes.c_int),
        ("last_block_rows", ctypes.c_int),
        ("block_columns", ctypes.c_int),
        ("row_blocks", ctypes.c_int),
        ("column_blocks", ctypes.c_int),
        ("size", ctypes.c_uint64),
        ("kernel_column_blocks", ctypes.c_int),
        ("values", ctypes.c_void_p),
        ("is_packed", ctypes.c_bool),
        ("is_borrowed", ctypes.c_bool),
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of W^T, which depend on the vectors of this processor."""

    block_rows: int
    block_columns: int
    kernel_column_blocks: int


class PackedWeight:
    """[out, in] float16 in fbgemm's order. `values` is kept as it is: a view of a mapped file stays one."""

    def __init__(self, values: torch.Tensor, out_features: int, in_features: int) -> None:
        """`values`: float16 [`packed_size`], as `pack` makes them, aligned to 64 bytes."""
        blocks = _checked_layout()
        if values.dtype != torch.float16 or values.numel() != packed_size(out_features, in_features):
            raise ValueError(f"{list(values.shape)} {values.dtype} are no packed [{out_features}, {in_features}]")
        if values.data_ptr() % _ALIGNMENT or not values.is_contiguous():
            raise ValueError(f"packed values must be contiguous from a multiple of {_ALIGNMENT} bytes")
        self.values = values
        self.out_features, self.in_features = out_features, in_features
        self._matrix = _Matrix(
            in_features,
            out_features,
            blocks.block_rows,
            in_features % blocks.block_rows or blocks.block_rows,
            blocks.block_columns,
            -(-in_features // blocks.block_rows),
            -(-out_features // blocks.block_columns),
            values.numel(),
            blocks.kernel_column_blocks,
            values.data_ptr(),
            True,
            True,
        )
        self._address = ctypes.addressof(self._matrix)
        self._multiply = _library().multiply

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] float32 to [rows, out] float32, on the calling thread."""
        if x.shape[-1] != self.in_features or x.dtype != torch.float32 or x.device.type != "cpu":
            raise ValueError(f"{list(x.shape)} {x.dtype} on {x.device} cannot meet [{self.out_features}, *] on cpu")
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.out_features)
        self._multiply(_PLAIN, x.shape[0], x.data_ptr(), self._address, 0.0, y.data_ptr(), 0, 1)
        return y


def packed_size(out_features: int, in_features: int) -> int:
    """Values of a packed matrix, with what fills its last block of outputs up."""
    return _size(_checked_layout(), out_features, in_features)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] float32 to float16 [`packed_size`]: blocks of inputs; of outputs; rows of W^T."""
    return _pack(_checked_layout(), weight)


@functools.cache
def layout() -> Layout | None:
    """How this processor's kernels want weights; None where torch's own operator must be used."""
    release = torch.__version__.partition("+")[0]
    if release != TORCH_RELEASE or sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        library = _library()
    except (OSError, AttributeError) as error:
        logger.warning("fbgemm_not_found: weights are packed by torch, which takes longer (%s)", error)
        return None
    found = _try_out(library)
    if found is None:
        logger.warning("fbgemm_differs: weights are packed by torch, which takes longer")
    return found


def _checked_layout() -> Layout:
    found = layout()
    assert found is not None, "asked for only where layout() is there"
    return found


@dataclass(frozen=True, slots=True)
class _Library:
    construct: ctypes._NamedFuncPointer
    multiply: ctypes._NamedFuncPointer


@functools.cache
def _library() -> _Library:
    """Raises OSError or AttributeError where torch was built otherwise."""
    loaded = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY))
    construct, multiply = loaded[_CONSTRUCT], loaded[_MULTIPLY]
    number, real, address = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    construct.argtypes = [address, number, number, number, real, address, number]
    multiply.argtypes = [number, number, address, address, real, address, number, number]
    construct.restype = multiply.restype = None
    return _Library(construct, multiply)


def _try_out(library: _Library) -> Layout | None:
    """The layout, once a matrix with unfilled blocks has been packed and applied just as torch does it."""
    generator = torch.Generator().manual_seed(1)
    out_features, in_features = 77, 600
    weight = torch.randn(out_features, in_features, generator=generator)
    weight[0, :8] = torch.tensor([0.0, -0.0, 1e-5, 6e-8, 2e-8, 65504.0, -65504.0, 3.14159])
    made = (_Matrix * 4)()  # room for a class that has grown; what it allocates, 160 KiB, is never freed
    library.construct(
        ctypes.addressof(made), _TRANSPOSE, in_features, out_features, 1.0, weight.data_ptr(), _BLOCK_ROWS
    )
    matrix = made[0]
    found = Layout(matrix.block_rows, matrix.block_columns, matrix.kernel_column_blocks)
    is_known = (matrix.rows, matrix.columns, matrix.block_rows) == (in_features, out_features, _BLOCK_ROWS)
    if not is_known or matrix.block_columns not in (16, 32) or not matrix.values or not matrix.is_packed:
        return None
    packed = _pack(found, weight)
    if matrix.is_borrowed or not packed.numel() <= matrix.size <= 2 * packed.numel():
        return None
    theirs = (ctypes.c_int16 * packed.numel()).from_address(matrix.values)
    if not torch.equal(torch.frombuffer(theirs, dtype=torch.int16), packed.view(torch.int16)):
        return None
    x = torch.randn(19, in_features, generator=generator)
    y = torch.empty(19, out_features)
    library.multiply(_PLAIN, 19, x.data_ptr(), ctypes.addressof(made), 0.0, y.data_ptr(), 0, 1)
    expected = torch.ops.quantized.linear_dynamic_fp16(x, torch.ops.quantized.linear_prepack_fp16(weight, None))
    return found if torch.equal(y, expected) else None


def _size(blocks: Layout, out_features: int, in_features: int) -> int:
    """torch also takes memory to fill the last block of inputs up, up to twice as much, and never looks at it."""
    return -(-out_features // blocks.block_columns) * blocks.block_columns * in_features


def _pack(blocks: Layout, weight: torch.Tensor) -> torch.Tensor:
    out_features, in_features = weight.shape
    packed = aligned_empty(_size(blocks, out_features, in_features))
    half = weight.clamp(-_FLOAT16_MAX, _FLOAT16_MAX).half()
    half = torch.nn.functional.pad(half, (0, 0, 0, -out_features % blocks.block_columns))
    columns = half.view(-1, blocks.block_columns, in_features).transpose(1, 2)  # [column blocks, in, block columns]
    used = 0
    for block in torch.split(columns, blocks.block_rows, dim=1):
        packed[used : used + block.numel()].view(block.shape).copy_(block)
        used += block.numel()
    return packed


def aligned_empty(count: int) -> torch.Tensor:
    """float16 [count] from a multiple of 64 bytes, as the kernels load them."""
    spare = _ALIGNMENT // 2
    memory = torch.empty(count + spare, dtype=torch.float16)
    start = -memory.data_ptr() % _ALIGNMENT // 2
    return memory[start : start + count]
