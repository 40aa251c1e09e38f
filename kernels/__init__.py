"""Kernels of the engine: each op a folder with its mathematics (README.md), a plain PyTorch form and its fast forms.

Importing this package loads neither torch nor triton; an op does so when it is imported. `kernels.dispatch` says which
form of an op a device gets.
"""

__version__ = "0.1.0"

OPS = (
    "causal_conv1d",
    "fp8",
    "gated_delta_rule",
    "nvfp4",
    "page_spans",
    "paged_attention",
    "rms_norm",
    "rotary",
    "sampling",
    "turboquant",
)
