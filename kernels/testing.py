"""What the tests and benchmarks of kernels share: poisoned outputs and comparisons with a stated tolerance."""

from __future__ import annotations

import torch


def poisoned(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> torch.Tensor:
    """A tensor of NaN (or of the integer type's lowest value): whatever a kernel fails to write stays visible."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), device=device).to(dtype)
    return torch.full(shape, torch.iinfo(dtype).min, dtype=dtype, device=device)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖ in float64; NaN if anything is NaN."""
    difference = (actual.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp_min(1e-300))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, relative: float, what: str = "result") -> None:
    """Fail unless shapes agree, everything is finite and the relative error in norm is at most `relative`."""
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if not torch.isfinite(actual.double()).all():
        raise AssertionError(
            f"{what}: {int((~torch.isfinite(actual.double())).sum())} values were not written or are not finite"
        )
    error = relative_error(actual, expected)
    if not error <= relative:
        raise AssertionError(f"{what}: relative error {error:.3g} is above {relative:.3g}")


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, *, what: str = "result") -> None:
    """Fail unless both tensors hold the same bytes; signed zeros count as different."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise AssertionError(
            f"{what}: {actual.dtype} {tuple(actual.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        )
    same = actual.contiguous().view(torch.uint8) == expected.contiguous().view(torch.uint8)
    if not same.all():
        raise AssertionError(f"{what}: {int((~same).sum())} of {same.numel()} bytes differ")
