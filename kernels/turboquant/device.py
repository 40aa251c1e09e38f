"""Triton code of TurboQuant's encoder."""

import triton
import triton.language as tl

from kernels.turboquant.permute import permute_ptx


@triton.jit
def encode_kernel(
    y_ptr,
    low_ptr,
    signs_ptr,
    scale_ptr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
    C0: tl.constexpr,
    C1: tl.constexpr,
    C2: tl.constexpr,
    C3: tl.constexpr,
    UNBIASED: tl.constexpr,
    ROOT: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, SIZE // 8)
    y = tl.load(y_ptr + row * SIZE + tl.arange(0, SIZE)).to(tl.float32)
    length = tl.sqrt(tl.sum(y * y))
    inverse = tl.where(length > 0, ROOT / length, 0.0)
    along = 0.0
    squares = 0.0
    signs = tl.zeros((SIZE // 8,), tl.int32)
    for half in tl.static_range(2):  # bytes of `low` in two runs of SIZE / 8
        low = tl.zeros((SIZE // 8,), tl.int32)
        for quarter in tl.static_range(4):
            u = tl.load(y_ptr + row * SIZE + quarter * (SIZE // 4) + half * (SIZE // 8) + b).to(tl.float32) * inverse
            a = tl.abs(u)
            m = (a > T0).to(tl.int32) + (a > T1).to(tl.int32) + (a > T2).to(tl.int32)
            c = tl.where(m == 0, C0, tl.where(m == 1, C1, tl.where(m == 2, C2, C3)))
            along += tl.sum(a * c)
            squares += tl.sum(c * c)
            low = low | (m << (2 * quarter))
            negative = (u.to(tl.int32, bitcast=True) < 0).to(tl.int32)
            signs = signs | (negative << (2 * quarter + half))
        tl.store(low_ptr + row * (SIZE // 4) + half * (SIZE // 8) + b, low.to(tl.uint8))
    tl.store(signs_ptr + row * (SIZE // 8) + b, signs.to(tl.uint8))
    unbiased = tl.where(along > 0, length * ROOT / along, 0.0)
    scale = unbiased if UNBIASED else length * along / (squares * ROOT)
    tl.store(scale_ptr + row, scale.to(tl.float16))


@triton.jit
def hadamard_product(x, h, ROOT: tl.constexpr):
    """x H for Sylvester's H of size ROOT², as two products with the small one: H = H_ROOT ⊗ H_ROOT."""
    turned = tl.dot(tl.dot(h, tl.reshape(x, (ROOT, ROOT)), input_precision="ieee"), h, input_precision="ieee")
    return tl.reshape(turned, (ROOT * ROOT,))


@triton.jit
def rotate_kernel(x_ptr, signs_ptr, hadamard_ptr, y_ptr, INVERSE: tl.constexpr, SIZE: tl.constexpr, ROOT: tl.constexpr):
    """One program a vector, so that a vector's bits do not depend on how many there are."""
    row = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, SIZE)
    i = tl.arange(0, ROOT)
    h = tl.load(hadamard_ptr + i[:, None] * ROOT + i[None, :])
    sign = tl.load(signs_ptr + r)
    x = tl.load(x_ptr + row * SIZE + r).to(tl.float32)
    y = hadamard_product(x, h, ROOT) * sign if INVERSE else hadamard_product(x * sign, h, ROOT)
    tl.store(y_ptr + row * SIZE + r, y.to(y_ptr.dtype.element_ty))


@triton.jit
def _centroids(low, negative, B0: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr):
    """float16 centroids from magnitudes 0 to 3 and signs, chosen as bits: selects on floats cost a conversion each."""
    bits = tl.where((low & 2) != 0, tl.where((low & 1) != 0, B3, B2), tl.where((low & 1) != 0, B1, B0))
    return (bits | (negative << 15)).to(tl.int16).to(tl.float16, bitcast=True)


_PERMUTE_0 = tl.constexpr(permute_ptx(0))
_PERMUTE_1 = tl.constexpr(permute_ptx(1))
_PERMUTE_2 = tl.constexpr(permute_ptx(2))
_PERMUTE_3 = tl.constexpr(permute_ptx(3))


@triton.jit
def _permuted_quarter(low, negative, quarter: tl.constexpr):
    """The centroids of one quarter as float16, from bytes; bit 2 * quarter of `negative` is the sign."""
    asm: tl.constexpr = (
        _PERMUTE_0 if quarter == 0 else _PERMUTE_1 if quarter == 1 else _PERMUTE_2 if quarter == 2 else _PERMUTE_3
    )
    return tl.inline_asm_elementwise(asm, "=r,=r,r,r", [low, negative], dtype=tl.float16, is_pure=True, pack=4)


@triton.jit
def three_bit_quarter(
    low,
    signs_ptr,
    base,
    r,
    quarter: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    DOT: tl.constexpr,
    FAST: tl.constexpr,
    B0: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    B3: tl.constexpr,
):
    """The values of elements quarter * SIZE / 4 + r of a page's tokens, without their scales. FAST: float16, by byte
    permutations, which the interpreter does not know."""
    if FAST:
        # Bytes of the right half give way by one bit once for all quarters.
        plane = tl.load(signs_ptr + (base + tl.arange(0, PAGE))[:, None] * (SIZE // 8) + (r % (SIZE // 8))[None, :])
        return _permuted_quarter(low, plane >> (r // (SIZE // 8)).to(tl.uint8)[None, :], quarter)
    # Elements quarter * SIZE / 4 + r: the sign of element e is bit e // (SIZE / 8) of byte e % (SIZE / 8).
    token = base + tl.arange(0, PAGE)
    plane = tl.load(signs_ptr + token[:, None] * (SIZE // 8) + (r % (SIZE // 8))[None, :]).to(tl.int32)
    low = low.to(tl.int32)
    negative = (plane >> (2 * quarter + r // (SIZE // 8))[None, :]) & 1
    return _centroids((low >> (2 * quarter)) & 3, negative, B0, B1, B2, B3).to(DOT)
