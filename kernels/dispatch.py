"""Which form of an op a device gets: one table, read top to bottom, and no silent fall-back.

A form is named `module:function`. A device that no row of an op fits is an error that says what to do; the plain
PyTorch
form is used on a GPU only by asking for it. `describe` gives the boot log its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CPU = (0, 0)
HOPPER = (9, 0)
BLACKWELL = (10, 0)
BLACKWELL_ULTRA = (10, 3)
BLACKWELL_WORKSTATION = (12, 0)


@dataclass(frozen=True)
class Form:
    """One implementation of an op and the compute capabilities it was built for. (0, 0) stands for the CPU."""

    op: str
    name: str
    capabilities: tuple[tuple[int, int], ...]
    target: str
    measured: bool  # whether it has run on such a device, or was only compiled for it


class NoForm(RuntimeError):
    """No form of the op fits the device."""

    def __init__(self, op: str, device: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"no form of {op} for {device}; there is: {', '.join(known)}. Ask for one of them by name, or add a row"
        )
        self.op, self.device = op, device


_GPUS = (HOPPER, BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_WORKSTATION)
_NEWER = (BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_WORKSTATION)

TABLE: tuple[Form, ...] = (
    Form("nvfp4.linear", "stream", (HOPPER,), "kernels.nvfp4.linear:stream", True),
    Form("nvfp4.linear", "triton", _NEWER, "kernels.nvfp4.linear:triton_form", False),
    Form("nvfp4.linear", "reference", (CPU,), "kernels.nvfp4.reference:linear", True),
    Form("nvfp4.linear_w4a4", "dot_scaled", _NEWER, "kernels.nvfp4.blackwell:linear_w4a4", False),
    Form("nvfp4.linear_w4a4", "emulated", (CPU, HOPPER), "kernels.nvfp4.reference:linear_w4a4", True),
    Form("nvfp4.quantize_activation", "triton", _GPUS, "kernels.nvfp4.quantize:quantize_activation", True),
    Form("nvfp4.quantize_activation", "reference", (CPU,), "kernels.nvfp4.reference:quantize_activation", True),
    Form("fp8.linear", "stream", (HOPPER,), "kernels.fp8.linear:linear", True),
    Form("fp8.linear", "library", _NEWER, "kernels.fp8.linear:library", False),
    Form("fp8.linear", "reference", (CPU,), "kernels.fp8.reference:linear", True),
    Form("gated_delta_rule.decode_step", "cuda", (HOPPER,), "kernels.gated_delta_rule.step:decode_step", True),
    Form("gated_delta_rule.decode_step", "reference", (CPU,), "kernels.gated_delta_rule.reference:decode_step", True),
    Form("gated_delta_rule.recurrent", "triton", _GPUS, "kernels.gated_delta_rule.recurrent:recurrent", True),
    Form("gated_delta_rule.recurrent", "reference", (CPU,), "kernels.gated_delta_rule.reference:recurrent_slots", True),
    Form("gated_delta_rule.chunk", "triton", _GPUS, "kernels.gated_delta_rule.chunk:chunked", True),
    Form("gated_delta_rule.chunk", "reference", (CPU,), "kernels.gated_delta_rule.reference:chunked_ragged", True),
    Form("causal_conv1d", "triton", _GPUS, "kernels.causal_conv1d.conv:causal_conv1d", True),
    Form("causal_conv1d", "reference", (CPU,), "kernels.causal_conv1d.reference:causal_conv1d", True),
    Form("rms_norm", "triton", _GPUS, "kernels.rms_norm.norm:rms_norm", True),
    Form("rms_norm", "reference", (CPU,), "kernels.rms_norm.reference:rms_norm", True),
    Form("rms_norm.gated", "triton", _GPUS, "kernels.rms_norm.norm:gated_rms_norm", True),
    Form("rms_norm.gated", "reference", (CPU,), "kernels.rms_norm.reference:gated_rms_norm", True),
    Form("rotary", "triton", _GPUS, "kernels.rotary.rotate:rotary", True),
    Form("rotary", "reference", (CPU,), "kernels.rotary.reference:rotary", True),
    Form("turboquant.rotate", "triton", _GPUS, "kernels.turboquant.rotate:rotate", True),
    Form("turboquant.rotate", "reference", (CPU,), "kernels.turboquant.reference:rotate", True),
    Form("paged_attention", "cuda", (HOPPER,), "kernels.paged_attention.attend:attend", True),
    Form("paged_attention", "triton", _NEWER, "kernels.paged_attention.attend:attend", False),
    Form("paged_attention", "reference", (CPU,), "kernels.paged_attention.reference:attend", True),
    Form("page_spans", "triton", _GPUS, "kernels.page_spans.gather:gather", True),
    Form("page_spans", "reference", (CPU,), "kernels.page_spans.reference:gather", True),
    Form("paged_attention.demote", "cuda", (HOPPER,), "kernels.paged_attention.launch:demote_on_device", True),
    Form("paged_attention.demote", "reference", (CPU,), "kernels.paged_attention.cache:demote", True),
    Form("sampling.sample", "triton", _GPUS, "kernels.sampling.sample:sample", True),
    Form("sampling.sample", "reference", (CPU,), "kernels.sampling.reference:sample", True),
)


def capability(device: torch.device | str) -> tuple[int, int]:
    """(0, 0) for the CPU, else the compute capability of the GPU."""
    import torch

    device = torch.device(device)
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise NoForm("any op", str(device), ("cpu", "cuda"))
    return torch.cuda.get_device_capability(device)


def choose(op: str, at: tuple[int, int], *, name: str | None = None) -> Form:
    """The form of an op for a capability; `name` asks for one form, which may be the reference on any device."""
    forms = [form for form in TABLE if form.op == op]
    if not forms:
        raise KeyError(f"no such op: {op}; there is {', '.join(sorted({form.op for form in TABLE}))}")
    for form in forms:
        fits = at in form.capabilities or form.name in ("reference", "emulated")
        if (form.name == name and fits) or (name is None and at in form.capabilities):
            return form
    raise NoForm(
        op, "the CPU" if at == CPU else f"compute capability {at[0]}.{at[1]}", tuple(form.name for form in forms)
    )


def resolve(op: str, device: torch.device | str, *, name: str | None = None) -> Callable[..., Any]:
    """The function itself. Its arguments differ by op and are typed there."""
    module, function = choose(op, capability(device), name=name).target.split(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def describe(device: torch.device | str) -> list[str]:
    """One line an op for the boot log: what the device gets, and whether that form has ever run on such a device."""
    at = capability(device)
    lines = []
    for op in dict.fromkeys(form.op for form in TABLE):
        try:
            form = choose(op, at)
            lines.append(
                f"{op}: {form.name}" + ("" if form.measured else " (compiled for this device, never run on one by us)")
            )
        except NoForm:
            lines.append(f"{op}: none")
    return lines
