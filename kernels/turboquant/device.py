"""Triton code of TurboQuant's encoder."""

import triton
import triton.language as tl


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
