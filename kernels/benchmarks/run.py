"""Correctness first, then time, on the GPU of this machine: `python -m kernels.benchmarks.run --output report.md`.

Each row stands beside what the bytes alone would take at the copy bandwidth of the same run. Weights and activations
are random; weight sets rotate, so that none is found in the L2.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.benchmarks.shapes import MODEL, PRODUCTS
from kernels.benchmarks.timing import copy_bandwidth, matmul_rate, median_us
from kernels.hybrid_step import Kind, StepMatrix
from kernels.native.gemm import launch, usual_split
from kernels.paged_attention.cache import allocate
from kernels.paged_attention.stage import Staging
from kernels.rotary.reference import rotary_table
from kernels.testing import assert_close, poisoned
from kernels.tuning import candidates

DEVICE = "cuda"


@dataclass(frozen=True)
class Ceilings:
    copy: float  # bytes per second
    matmul: float  # FLOP per second

    def share(self, bytes_: float, us: float) -> str:
        return f"{bytes_ / self.copy * 1e6 / us:.0%}"


def check() -> list[str]:
    """The cheapest proof that what is timed below computes what it should; the tests go further."""
    from kernels.nvfp4.pack import pack
    from kernels.nvfp4.reference import quantize, unscaled

    torch.manual_seed(0)
    matrix = quantize(torch.randn(4176, 5120, device=DEVICE))
    packed = pack(matrix.codes, matrix.scales, matrix.multiplier)
    for rows in (1, 8, 17, 100):
        x = torch.randn(rows, 5120, device=DEVICE).bfloat16()
        splits, k_warps = usual_split("nvfp4", 4176, 5120, rows)
        y = poisoned(splits, rows, 4176, device=DEVICE)
        launch(
            "nvfp4",
            x,
            packed.codes,
            packed.scales,
            packed.multiplier,
            y,
            rows=4176,
            columns=5120,
            splits=splits,
            k_warps=k_warps,
        )
        expected = x.double() @ (unscaled(matrix).double() * matrix.multiplier.double()[:, None]).T
        assert_close(y.sum(0), expected, relative=6e-6, what=f"{rows} rows")
    return ["NVFP4 products of 1, 8, 17 and 100 rows agree with float64 to 6e-6."]


def products(ceilings: Ceilings) -> list[str]:
    lines = [
        "| product | rows | NVFP4 us | of copy | FP8 (same kernel) us | of copy | FP8 torch, one scale us | "
        "FP8 torch, by row us | BF16 torch us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (n, k, _) in PRODUCTS.items():
        sets = max(2, int(3e8 // (n * k * 9 / 16)) + 1)
        nvfp4 = [
            (
                torch.randint(0, 256, (n * k // 2,), dtype=torch.uint8, device=DEVICE),
                torch.randint(72, 96, (n * k // 16,), dtype=torch.uint8, device=DEVICE),
            )
            for _ in range(sets)
        ]
        fp8 = [
            torch.randint(-128, 127, (n, k), dtype=torch.int8, device=DEVICE).bitwise_and_(-65)
            for _ in range(sets // 2 + 1)
        ]
        bf16 = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
        multiplier = torch.rand(n, device=DEVICE)
        for rows in (1, 8, 16, 32, 64, 128):
            x = torch.randn(rows, k, device=DEVICE).bfloat16()
            x8, x16 = x.to(torch.float8_e4m3fn), x.to(torch.float16)
            cells = []
            both: list[tuple[Kind, Any]] = [("nvfp4", nvfp4), ("fp8", [(w, None) for w in fp8])]
            for kind, weights in both:
                us = best_of(kind, x if kind == "nvfp4" else x16, weights, multiplier, n, k)
                cells += [f"{us:.1f}", ceilings.share(n * k * (9 / 16 if kind == "nvfp4" else 1), us)]
            one = torch.ones((), device=DEVICE)
            row_scale, column_scale = torch.ones(rows, 1, device=DEVICE), torch.ones(1, n, device=DEVICE)
            for a, b in ((one, one), (row_scale, column_scale)):
                cells.append(library([partial(_scaled, x8, w, a, b) for w in fp8]))
            cells.append(library([partial(torch.mm, x, w.T) for w in bf16]))
            lines.append(f"| {name} {n} x {k} | {rows} | " + " | ".join(cells) + " |")
        del nvfp4, fp8, bf16
    return lines


def _scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(
        x, w.view(torch.float8_e4m3fn).T, scale_a=a, scale_b=b, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def library(calls: list[Callable[[], torch.Tensor]]) -> str:
    try:
        return f"{median_us(calls, repeats=5):.1f}"
    except RuntimeError as error:  # a shape that the library does not take is a result too
        return str(error).splitlines()[0][:40]


def best_of(
    kind: Kind,
    x: torch.Tensor,
    weights: list[tuple[torch.Tensor, torch.Tensor | None]],
    multiplier: torch.Tensor,
    n: int,
    k: int,
) -> float:
    """Over the ways to cut the product that keep most of the device busy."""
    best = float("inf")
    matrix = StepMatrix(kind, weights[0][0], weights[0][1], multiplier, n, k)
    for splits, k_warps in candidates(matrix, x.shape[0]):
        if n > 200_000 and splits > 2:
            continue
        y = torch.empty(splits, x.shape[0], n, device=DEVICE)
        sizes = {"rows": n, "columns": k, "splits": splits, "k_warps": k_warps}
        calls = [
            partial(launch, kind, x, codes, scales, multiplier, y, **sizes, overlap=True) for codes, scales in weights
        ]
        best = min(best, median_us(calls, repeats=5))
    return best


def delta_us(batch: int, rows: int) -> float:
    from kernels.gated_delta_rule.step import decode_step

    slots = batch * (rows + 1) if rows > 1 else batch
    count = max(3, int(6e8 // (slots * 48 * 65536)))
    states = [torch.randn(slots, 48, 128, 128, device=DEVICE) * 0.1 for _ in range(count)]
    convs = [torch.randn(batch, 8, 10240, device=DEVICE).bfloat16() for _ in range(count)]
    mixed = torch.randn(batch, rows, 16512, device=DEVICE)
    slot, where = torch.arange(batch, device=DEVICE), torch.full((batch,), 1000, device=DEVICE)
    target = (torch.arange(batch * rows, device=DEVICE) + slots - batch * rows).view(batch, rows)
    fixed = [torch.randn(4, 10240, device=DEVICE) * 0.3, *torch.rand(2, 48, device=DEVICE)]
    norm, out = torch.ones(128, device=DEVICE), torch.empty(batch, rows, 6144, dtype=torch.bfloat16, device=DEVICE)

    def call(state: torch.Tensor, conv: torch.Tensor) -> None:
        decode_step(mixed, state, slot, target, conv, slot, where, *fixed, norm, key_heads=16, out=out, overlap=True)

    return median_us([partial(call, state, conv) for state, conv in zip(states, convs, strict=True)])


def delta_rule(ceilings: Ceilings) -> list[str]:
    lines = ["| sequences | rows each | us | of copy (state bytes) |", "|---|---|---|---|"]
    for batch, rows in ((1, 1), (8, 1), (32, 1), (8, 4)):
        us = delta_us(batch, rows)
        lines.append(f"| {batch} | {rows} | {us:.1f} | {ceilings.share(batch * 48 * 65536 * (1 + rows), us)} |")
    return lines


def attention_us(batch: int, context: int, staging: Staging) -> float:
    """What a decode step does between the projections of one layer, launched as the engine does: norms, rotations, the
    new token's page, attention, joining, gate. Pools hold random bytes, pages are in random order."""
    from kernels.paged_attention.layer import decode_step

    pages = context // staging.page_tokens
    pools = [allocate(1 + batch * pages, 1 + batch * pages, 4, staging.page_tokens, 256, DEVICE) for _ in range(4)]
    for pool in pools:
        for values in (pool.keys, pool.values):
            values.view(torch.uint8).random_(0, 0x70)
        for encoded in (pool.three_bit_keys, pool.three_bit_values):
            encoded.codes.random_(0, 256)
            encoded.scale.fill_(0.06)
    table = 1 + torch.randperm(batch * pages, device=DEVICE).to(torch.int32).view(batch, pages)
    where = torch.full((batch,), context - 1, device=DEVICE)
    mixed = torch.randn(1, batch, 1, (24 + 4) * 2 * 256, device=DEVICE)
    fixed = [torch.zeros(256, device=DEVICE)] * 2 + list(rotary_table(context, 64, 1e7, DEVICE))
    calls = [
        partial(decode_step, mixed, pool, table, table, where, staging, *fixed, heads=24, overlap=True)
        for pool in pools
    ]
    return median_us(calls)


def attention(ceilings: Ceilings) -> list[str]:
    lines = [
        "| sequences | context | FP8 pages | three-bit pages | us | of copy (KV bytes) |",
        "|---|---|---|---|---|---|",
    ]
    everything = 1 << 20
    for batch, context, recent in (
        (8, 1024, everything),
        (8, 32768, everything),
        (8, 32768, 32),
        (1, 131072, everything),
        (1, 131072, 32),
    ):
        staging = Staging(64, 4, recent)
        pages = context // staging.page_tokens
        fp8 = sum(staging.is_fp8(context - 1, page) for page in range(pages))
        bytes_ = batch * staging.page_tokens * (fp8 * 2048 + (pages - fp8) * 784)
        us = attention_us(batch, context, staging)
        lines.append(f"| {batch} | {context} | {fp8} | {pages - fp8} | {us:.1f} | {ceilings.share(bytes_, us)} |")
    return lines


def prefill(ceilings: Ceilings) -> list[str]:
    from kernels.nvfp4.linear import stream
    from kernels.nvfp4.pack import pack
    from kernels.nvfp4.reference import quantize

    lines = ["| product | rows | ms | of the bf16 product rate |", "|---|---|---|---|"]
    for name in ("gate_up", "down"):
        n, k, _ = PRODUCTS[name]
        matrix = quantize(torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16))
        packed = pack(matrix.codes, matrix.scales, matrix.multiplier)
        for rows in (64, 512, 2048, 8192):
            x = torch.randn(rows, k, device=DEVICE).bfloat16()
            us = median_us([partial(stream, x, packed)], repeats=5)
            share = 2 * rows * n * k / (us * 1e-6) / ceilings.matmul
            lines.append(f"| {name} | {rows} | {us / 1e3:.3f} | {share:.0%} |")
    return lines


SECTIONS: dict[str, Callable[[Ceilings], list[str]]] = {
    "Products of a decode step": products,
    "Gated delta rule, fused decode step of one layer": delta_rule,
    "Attention of one layer over the staged cache": attention,
    "Prefill products (dequantised once, then the library's)": prefill,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the report is written as well, in Markdown")
    parser.add_argument("--only", help="run the sections whose title contains this")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        parser.error("these benchmarks are written for compute capability 9.0 and need such a GPU")
    ceilings = Ceilings(copy_bandwidth(), matmul_rate())
    report = [
        f"Device {torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}. {MODEL}.",
        "",
        f"Ceilings of the same run: copy {ceilings.copy / 1e12:.2f} TB/s, "
        f"bf16 product {ceilings.matmul / 1e12:.0f} TFLOP/s.",
        *check(),
    ]
    sys.stdout.write("\n".join(report) + "\n")
    for title, section in SECTIONS.items():
        if options.only and options.only not in title:
            continue
        try:
            lines = section(ceilings)
        except (
            Exception
        ) as error:  # a section that fails must not hide the others; it is named and the exit code says so
            lines = [f"failed: {type(error).__name__}: {error}"]
        torch.cuda.empty_cache()
        sys.stdout.write("\n".join([f"\n## {title}", "", *lines]) + "\n")
        sys.stdout.flush()
        report += ["", f"## {title}", "", *lines]
        if options.output:
            options.output.write_text("\n".join(report) + "\n")
    return int(any(line.startswith("failed: ") for line in report))


if __name__ == "__main__":
    sys.exit(main())
