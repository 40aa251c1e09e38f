"""One decode step of the 27B trunk in a CUDA graph: 64 layers, head and argmax, random weights, NVFP4 against FP8.

Both run the same kernels in the same order; only the format of the weights and activations differs, and the split of
each
product is tuned in place for each. FP8 activations have a fixed multiplier (cheaper than one a token). bf16 through
torch is
the library's product between the same small kernels.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import torch

from kernels.benchmarks.shapes import LAYERS, PRODUCTS, weight_bytes
from kernels.benchmarks.timing import median_graph_us
from kernels.gated_delta_rule.step import decode_step as gdn_step
from kernels.native.gemm import DeferredNorm, launch, least_splits
from kernels.turboquant.reference import CENTROID_BITS, hadamard, signs

DEVICE = "cuda"
GDN_LAYERS, ATTENTION_LAYERS = 48, 16
PAGE, SPLIT_PAGES = 64, 4


class Step:
    """Buffers and weights of one configuration. `run` is the step; nothing in it allocates."""

    def __init__(self, kind: str, batch: int, context: int = 640) -> None:
        self.kind, self.batch, self.context = kind, batch, context
        self.overlap, self.only = True, ""
        self.half = torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16
        self.activation = 16.0 if kind == "fp8" else 1.0
        torch.manual_seed(0)
        self.layers = [
            {
                name: self.weight(*PRODUCTS[name][:2])
                for name in ("attn_in" if i % 4 == 3 else "gdn_in", "out", "gate_up", "down")
            }
            for i in range(LAYERS)
        ]
        self.head = self.weight(*PRODUCTS["head"][:2])
        spread = {"nvfp4": 0.02 / 6.0, "fp8": 0.02 / 100.0}[kind] / self.activation
        self.multiplier = {name: torch.full((n,), spread, device=DEVICE) for name, (n, _, _) in PRODUCTS.items()}
        f32 = {"device": DEVICE, "dtype": torch.float32}
        self.embedding = torch.randn(248320, 5120, device=DEVICE, dtype=torch.bfloat16)
        self.norm, self.q_norm, self.k_norm = (
            torch.randn(5120, **f32) * 0.1,
            torch.randn(256, **f32) * 0.1,
            torch.randn(256, **f32) * 0.1,
        )
        self.conv_weight, self.a_log = torch.randn(4, 10240, **f32) * 0.3, torch.rand(48, **f32)
        self.dt_bias, self.gdn_norm = torch.ones(48, **f32), torch.ones(128, **f32)
        angle = torch.arange(4096, **f32)[:, None] * 1e7 ** (-torch.arange(0, 64, 2, **f32) / 64)
        self.cos, self.sin = angle.cos().contiguous(), angle.sin().contiguous()
        self.signs, self.hadamard = signs(256).to(DEVICE), hadamard(16).to(DEVICE)
        self.state = [torch.zeros(batch, 48, 128, 128, **f32) for _ in range(GDN_LAYERS)]
        self.conv = [torch.zeros(batch, 8, 10240, device=DEVICE, dtype=torch.bfloat16) for _ in range(GDN_LAYERS)]
        self.pages = -(-(context + 1) // PAGE)
        pool = (1 + batch * self.pages, 4, PAGE, 256)
        self.cache = [
            [torch.zeros(pool, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2)]
            for _ in range(ATTENTION_LAYERS)
        ]
        self.table = 1 + torch.arange(batch * self.pages, device=DEVICE, dtype=torch.int32).view(batch, self.pages)
        self.slots = torch.arange(batch, device=DEVICE)
        self.positions = torch.full((batch,), context, device=DEVICE)
        self.h, self.squares = torch.zeros(batch, 5120, **f32), torch.ones(batch, 4, **f32)
        self.x, self.wide, self.middle = (
            torch.zeros(batch, k, device=DEVICE).to(self.half) for k in (5120, 6144, 17408)
        )
        byte, scale = (
            torch.zeros(1, device=DEVICE, dtype=torch.uint8),
            torch.zeros(1, device=DEVICE, dtype=torch.float16),
        )
        self.no_pages = [byte, byte, scale] * 2
        self.q = torch.zeros(batch, 24, 256, **f32)
        self.splits = -(-self.pages // SPLIT_PAGES)
        self.acc, self.ml = (
            torch.zeros(batch * 4 * self.splits, 16, 256, **f32),
            torch.zeros(batch * 4 * self.splits, 32, **f32),
        )
        self.logits = torch.zeros(batch, 248320, **f32)
        self.config: dict[str, tuple[int, int]] = {}
        for name, (_, k, _) in PRODUCTS.items():
            self.config[name] = (least_splits(kind, k, batch), 16 if batch <= 8 else 8 if batch <= 16 else 4)
        # Partial sums of any product: of the head, and of the splits that `tune` may try.
        self.parts = torch.zeros(
            batch * max(248320 * self.config["head"][0], 34816 * 8, 14336 * 8, 5120 * 40), device=DEVICE
        )

    def weight(self, n: int, k: int) -> Any:
        if self.kind == "nvfp4":
            return (
                torch.randint(0, 256, (n * k // 2,), dtype=torch.uint8, device=DEVICE),
                torch.randint(72, 96, (n * k // 16,), dtype=torch.uint8, device=DEVICE),
            )
        # All finite e4m3 bytes: the exponent's top bit is cleared.
        values = torch.randint(-128, 127, (n * k,), dtype=torch.int8, device=DEVICE).bitwise_and_(-65)
        return values.view(torch.uint8), None

    def bytes_read(self) -> dict[str, float]:
        return {
            "weights": weight_bytes(self.kind),
            "state": self.batch * GDN_LAYERS * 48 * 128 * 128 * 4 * 2,
            "kv": self.batch * (self.context + 1) * ATTENTION_LAYERS * 2 * 4 * 256,
        }

    def product(self, name: str, weight: Any, x: torch.Tensor, *, normed: bool) -> tuple[torch.Tensor, int]:
        """Partial sums and their number; 0 parts: the SiLU product is already in `middle`."""
        n, k, _ = PRODUCTS[name]
        splits, k_warps = self.config[name]
        fused = name == "gate_up" and splits == 1
        y = self.middle if fused else self.logits if name == "head" and splits == 1 else self.parts
        if self.only != "small":
            launch(
                self.kind,
                x,
                weight[0],
                weight[1],
                self.multiplier[name],
                y,
                rows=n,
                columns=k,
                splits=splits,
                k_warps=k_warps,
                output="silu_mul" if fused else "float",
                norm=DeferredNorm(self.squares, 5120) if normed else None,
                output_scale=self.activation,
                overlap=self.overlap,
            )
        return y, 0 if fused else splits

    def add(self, parts: torch.Tensor, count: int) -> None:
        from kernels.rms_norm.device import add_deferred_kernel

        if self.only != "products":
            add_deferred_kernel[(self.batch, 4)](
                parts,
                self.h,
                self.norm,
                self.x,
                self.squares,
                self.batch,
                PARTS=count,
                WIDTH=5120,
                BLOCK=2048,
                num_warps=8,
                OVERLAP=self.overlap,
                launch_pdl=self.overlap,
            )

    def attention(self, layer: int, parts: torch.Tensor, count: int) -> None:
        import triton.language as tl

        from kernels.paged_attention.device import attend_kernel, finish_kernel, prepare_kernel

        keys, values = self.cache[layer]
        pdl = {"OVERLAP": self.overlap, "launch_pdl": self.overlap}
        shape = {"HEADS": 24, "KV_HEADS": 4, "SIZE": 256, "ROOT": 16}
        prepare_kernel[(self.batch, 32)](
            parts,
            self.q_norm,
            self.k_norm,
            self.cos,
            self.sin,
            self.signs,
            self.hadamard,
            self.positions,
            self.table,
            self.q,
            keys,
            values,
            1,
            self.pages,
            self.batch,
            PARTS=count,
            HALF=32,
            PAGE=PAGE,
            num_warps=2,
            **shape,
            **pdl,
        )
        attend_kernel[(self.batch, 4, self.splits)](
            self.q,
            keys,
            values,
            *self.no_pages,
            self.table,
            self.table,
            self.positions,
            self.acc,
            self.ml,
            1,
            self.pages,
            4,
            1 << 20,
            0.0625,
            *CENTROID_BITS,
            KV_HEADS=4,
            GROUP=6,
            SIZE=256,
            PAGE=PAGE,
            SPLIT=SPLIT_PAGES,
            SPLITS=self.splits,
            DOT=tl.float16,
            STAGES=3,
            num_warps=4,
            **pdl,
        )
        finish_kernel[(self.batch, 24)](
            self.acc,
            self.ml,
            self.positions,
            parts,
            self.signs,
            self.hadamard,
            self.wide,
            1,
            self.batch,
            self.activation,
            PARTS=count,
            RUN=PAGE * SPLIT_PAGES,
            SPLITS=self.splits,
            num_warps=2,
            **shape,
            **pdl,
        )

    def run(self, layers: int = LAYERS, head: bool = True) -> None:
        from kernels.rms_norm.device import silu_mul_kernel

        small = self.only != "products"
        self.add(self.h, 0)
        for i in range(layers):
            weights = self.layers[i]
            if i % 4 == 3:
                parts, count = self.product("attn_in", weights["attn_in"], self.x, normed=True)
                if small:
                    self.attention(i // 4, parts, count)
            else:
                parts, count = self.product("gdn_in", weights["gdn_in"], self.x, normed=True)
                a = i // 4 * 3 + i % 4
                if small:
                    mixed = (
                        parts[: count * self.batch * 16512].view(count, self.batch, 1, 16512)
                        if parts.ndim == 1
                        else parts.view(1, self.batch, 1, -1)
                    )
                    gdn_step(
                        mixed,
                        self.state[a],
                        self.slots,
                        self.slots[:, None],
                        self.conv[a],
                        self.slots,
                        self.positions,
                        self.conv_weight,
                        self.a_log,
                        self.dt_bias,
                        self.gdn_norm,
                        key_heads=16,
                        out=self.wide.view(self.batch, 1, 6144),
                        output_scale=self.activation,
                        overlap=self.overlap,
                    )
            self.add(*self.product("out", weights["out"], self.wide, normed=False))
            parts, count = self.product("gate_up", weights["gate_up"], self.x, normed=True)
            if count and small:
                silu_mul_kernel[(self.batch, 17)](
                    parts,
                    self.middle,
                    self.batch,
                    self.activation,
                    PARTS=count,
                    WIDTH=34816,
                    BLOCK=1024,
                    OVERLAP=self.overlap,
                    launch_pdl=self.overlap,
                )
            self.add(*self.product("down", weights["down"], self.middle, normed=False))
        if head:
            parts, count = self.product("head", self.head, self.x, normed=True)
            logits = (
                parts
                if parts.ndim == 2
                else parts[: count * self.batch * 248320].view(count, self.batch, 248320).sum(0)
            )
            self.chosen = logits.argmax(-1)
            self.h.copy_(self.embedding[self.chosen])

    def reset(self) -> None:
        for tensor in (*self.state, *self.conv):
            tensor.zero_()
        self.h.copy_(self.embedding[: self.batch])

    def graph(self, **part: Any) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run(**part)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.run(**part)
        return graph

    def tune(self) -> None:
        """Split of each product, chosen in place on eight layers: neighbours hide or show a kernel's start."""
        best = median_graph_us(self.graph(layers=8, head=False), repeats=5)
        for name in ("gate_up", "down", "gdn_in", "attn_in", "out"):
            k = PRODUCTS[name][1]
            least = least_splits(self.kind, k, self.batch)
            warps = (16, 8, 4) if self.batch <= 8 else (8, 4) if self.batch <= 16 else (4,)
            for splits, k_warps in itertools.product(sorted({least, least + 1, 2 * least, 2, 3, 4, 5, 6, 8}), warps):
                if splits < least or k // 64 // splits < k_warps:
                    continue
                before, self.config[name] = self.config[name], (splits, k_warps)
                took = median_graph_us(self.graph(layers=8, head=False), repeats=5)
                if took < best:
                    best = took
                else:
                    self.config[name] = before


def measure(kind: str, batch: int, *, tune: bool = True, context: int = 640) -> dict[str, Any]:
    step = Step(kind, batch, context)
    if tune:
        step.tune()
    step.reset()
    result: dict[str, Any] = {"kind": kind, "batch": batch, "bytes": step.bytes_read(), "config": dict(step.config)}
    graph = step.graph()
    result["us"] = median_graph_us(graph, repeats=15)
    step.reset()
    graph.replay()
    torch.cuda.synchronize()
    overlapped = step.h.clone()
    result["finite"] = bool(torch.isfinite(step.logits).all())
    step.overlap = False
    step.reset()
    step.run()
    torch.cuda.synchronize()
    result["overlap_changes_nothing"] = bool(torch.equal(overlapped, step.h))
    step.overlap = True
    for part in ("products", "small"):
        step.only = part
        result[f"{part}_us"] = median_graph_us(step.graph(), repeats=9)
    result["allocated_gb"] = torch.cuda.memory_allocated() / 1e9
    del step, graph
    gc.collect()
    torch.cuda.empty_cache()
    return result
