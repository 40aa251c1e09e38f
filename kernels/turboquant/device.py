"""Triton code of the rotation."""

import triton
import triton.language as tl


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
