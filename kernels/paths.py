"""Which way each kind of layer takes on a device: one table, and what of it is on.

A fast way is off until each of its gates (`gates.py`) has passed on this chip with this torch, this triton and these
sources; then the plain way is taken. `choose` decides, `describe` gives the boot log its lines. No torch in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernels.dispatch import BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_WORKSTATION, CPU, HOPPER

Chip = tuple[int, int]
_GPUS = (HOPPER, BLACKWELL, BLACKWELL_ULTRA, BLACKWELL_WORKSTATION)
PLAIN = "plain PyTorch"


@dataclass(frozen=True)
class Way:
    """One row of the table."""

    layer: str
    precision: str  # "any", or a kind of matrix or cache
    name: str
    chips: tuple[Chip, ...]
    kernel: str
    gates: tuple[str, ...] = ()


TABLE: tuple[Way, ...] = (
    Way("product", "nvfp4", "packed", (HOPPER,), "native/stream_gemm.cu, native/wide_gemm.cu", ("nvfp4.stream",)),
    Way("product", "fp8", "packed", (HOPPER,), "native/stream_gemm.cu, native/wide_gemm.cu", ("fp8.stream",)),
    Way("product", "bf16", "packed", _GPUS, "the library's product"),
    Way("linear_attention", "any", "fused", (HOPPER,), "native/gdn_step.cu", ("gated_delta_rule.step",)),
    Way(
        "linear_attention",
        "any",
        "chunked",
        _GPUS,
        "gated_delta_rule/chunk.py, causal_conv1d/conv.py, rms_norm/norm.py",
        ("gated_delta_rule.chunk", "causal_conv1d", "rms_norm"),
    ),
    Way("full_attention", "any", "paged", _GPUS, "paged_attention/launch.py, device.py", ("paged_attention.step",)),
    Way(
        "full_attention",
        "three_bit",
        "staged",
        (HOPPER,),
        "native/staged_attention.cu, three-bit pages",
        ("paged_attention.staged", "step.staged"),
    ),
    Way(
        "full_attention",
        "any",
        "flash",
        _GPUS,
        "page_spans/gather.py, the library's flash attention",
        ("attention.prefill",),
    ),
    Way("step", "any", "overlap", (HOPPER,), "hybrid_step.py, launches overlapping", ("step.overlap",)),
    Way("step", "any", "graphs", (HOPPER,), "hybrid_step.py, one CUDA graph a batch size", ("step.graph",)),
    Way("sampling", "any", "sampler", _GPUS, "sampling/device.py", ("sampling",)),
)


@dataclass(frozen=True)
class Choice:
    """What is on; `lines` say what each row became and why."""

    on: frozenset[str]
    lines: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        return name in self.on


def chip_name(chip: Chip) -> str:
    return "cpu" if chip == CPU else f"sm_{chip[0]}{chip[1]}"


def choose(
    chip: Chip,
    kinds: Iterable[str],
    passed: Callable[[str], bool],
    *,
    misfit: str = "",
    chunk_misfit: str = "",
    staged_misfit: str = "",
) -> Choice:
    """`kinds`: of the model's matrices, and "three_bit" where the cache is to have two stages. `passed`: whether a gate
    has passed here. `misfit`: why the fused step cannot take this model's shape, if it cannot. `chunk_misfit`,
    `staged_misfit`: the same of the chunked way and of the staged cache.

    The fused step needs all of its parts: packed products of every kind, both layers, or nothing of it is on.
    """
    kinds = sorted(set(kinds))
    verdicts: list[tuple[Way, str]] = []
    for way in TABLE:
        if way.precision not in ("any", *kinds):
            continue
        missing = [gate for gate in way.gates if not passed(gate)]
        if chip not in way.chips:
            verdicts.append((way, "not built for this chip"))
        elif missing:
            verdicts.append((way, f"gate {', '.join(missing)} has not passed here"))
        else:
            verdicts.append((way, ""))
    parts = [verdict for way, verdict in verdicts if way.name in ("packed", "fused", "paged")]
    has_step = not misfit and not any(parts)
    lines, on = [], set()
    for way, reason in verdicts:
        if not reason and way.name in ("packed", "fused", "paged", "staged", "overlap", "graphs") and not has_step:
            reason = misfit or "another part of the fused step is off"
        if not reason and way.name == "staged":
            reason = staged_misfit
        if not reason and way.name == "chunked":
            reason = chunk_misfit
        if not reason:
            on.add(way.name)
        precision = "" if way.precision == "any" else f" x {way.precision}"
        plain = "FP8 pages alone" if way.name == "staged" else PLAIN
        outcome = way.kernel if not reason else f"{plain} ({way.kernel} is off: {reason})"
        lines.append(f"{way.layer}{precision} x {chip_name(chip)} [{way.name}] -> {outcome}")
    if "packed" in on and not has_step:
        on.discard("packed")
    return Choice(frozenset(on), tuple(lines))
