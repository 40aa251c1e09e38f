"""One decode step of the hybrid on an NVIDIA GPU: every layer, head and logits as launches over fixed buffers.

Nothing in `run` allocates or waits, so it can be captured into a CUDA graph and replayed with new numbers in the
buffers. Each launch may begin while the one before it ends (`overlap`). The residual stream is float32; a norm is
deferred: rows go into a product before their division by the root mean square, which the product's end applies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from kernels.gated_delta_rule.step import decode_step as delta_step
from kernels.native.gemm import MAX_TOKENS, WIDE, DeferredNorm, launch, usual_split
from kernels.paged_attention.cache import PageMemory, PagePools
from kernels.paged_attention.launch import attend_pages, partial_sums
from kernels.paged_attention.runs import runs_of
from kernels.paged_attention.stage import Staging
from kernels.turboquant.reference import Encoded
from kernels.turboquant.rotate import constants

Kind = Literal["nvfp4", "fp8", "bf16"]
# What rows are rounded to before a product with matrices of this kind. The step takes narrow weights as weights only.
ROWS_TYPE: dict[str, torch.dtype] = {"nvfp4": torch.bfloat16, "fp8": torch.float16, "bf16": torch.bfloat16}
RING = 8  # places for inputs of the convolution


@dataclass(frozen=True, eq=False)
class StepMatrix:
    """A matrix as the step's products read it: packed (nvfp4, fp8), or plain bf16 [rows, columns] in `codes`."""

    kind: Kind
    codes: torch.Tensor
    scales: torch.Tensor | None
    multiplier: torch.Tensor | None
    rows: int
    columns: int

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.multiplier) if part is not None)


@dataclass(frozen=True, eq=False)
class DeltaLayer:
    inward: StepMatrix  # q | k | v | z, and b | a unless there are `gates`
    gates: torch.Tensor | None  # bf16 [b | a, hidden]
    outward: StepMatrix
    conv: torch.Tensor  # f32 [4, q | k | v]
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor  # not zero-centred


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    inward: StepMatrix  # in each query head its query, then its gate; k; v
    outward: StepMatrix
    q_norm: torch.Tensor  # zero-centred, like all norms below
    k_norm: torch.Tensor


@dataclass(frozen=True, eq=False)
class StepLayer:
    input_norm: torch.Tensor
    mixer: DeltaLayer | AttentionLayer
    post_norm: torch.Tensor
    gate_up: StepMatrix  # packed with pairs of eight rows
    down: StepMatrix


@dataclass(frozen=True, eq=False)
class Embedding:
    """Rows by token: bf16, or e4m3 with a multiplier a row."""

    values: torch.Tensor  # [vocabulary, hidden]
    multiplier: torch.Tensor | None = None  # f32 [vocabulary]

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """float32 [.., hidden]; exact."""
        if self.multiplier is None:
            return self.values[token_ids].float()
        found = self.values.view(torch.uint8)[token_ids].view(torch.float8_e4m3fn)
        return found.float() * self.multiplier[token_ids][..., None]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.multiplier is None else self.multiplier.nbytes)

    @property
    def device(self) -> torch.device:
        return self.values.device


@dataclass(frozen=True, eq=False)
class Trunk:
    embedding: Embedding
    layers: list[StepLayer]
    norm: torch.Tensor
    head: StepMatrix


@dataclass(frozen=True)
class StepShape:
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    key_heads: int
    value_heads: int
    value_size: int
    page_tokens: int


@dataclass(frozen=True, eq=False)
class DeltaMemory:
    state: torch.Tensor  # f32 [slots, value heads, K, V]
    ring: torch.Tensor  # bf16 [slots, RING, channels]


# By product: parts of K over blocks, and warps of a block along K, or WIDE.
Config = dict[str, tuple[int, int]]
# The same by `split_name`: what was measured to be fastest.
Splits = dict[str, tuple[int, int]]
MOST_ROWS = MAX_TOKENS


def split_name(matrix: StepMatrix, batch: int) -> str:
    return f"{matrix.kind} {matrix.rows}x{matrix.columns} x {batch}"


def default_config(trunk: Trunk, batch: int, *, invariant: bool = False, measured: Splits | None = None) -> Config:
    """What was `measured`, else what is usual. `invariant`: the same for every batch: one order of sums."""
    found = {} if invariant else measured or {}
    config: Config = {}
    for name, matrix in products_of(trunk).items():
        usual = (1, WIDE)
        if matrix.kind != "bf16":
            usual = usual_split(matrix.kind, matrix.rows, matrix.columns, batch, invariant=invariant)
        config[name] = found.get(split_name(matrix, batch), usual)
    return config


def products_of(trunk: Trunk) -> dict[str, StepMatrix]:
    """One matrix of each product of the step, by the product's name."""
    found: dict[str, StepMatrix] = {}
    for layer in trunk.layers:
        inward = "gdn_in" if isinstance(layer.mixer, DeltaLayer) else "attn_in"
        for name, matrix in ((inward, layer.mixer.inward), ("out", layer.mixer.outward)):
            found.setdefault(name, matrix)
        found.setdefault("gate_up", layer.gate_up)
        found.setdefault("down", layer.down)
    return found | {"head": trunk.head}


@dataclass(eq=False)
class DecodeStep:
    """The step for `batch` sequences whose block tables have `pages` entries. Fill `token_ids`, `positions`, `slots`
    and `table`, then `run` or replay; the result is `logits`. Rows that only fill up the batch point to a slot and a
    page that nothing else uses. Over a cache in two stages (`PagePools`, and `staging`) `table` names the FP8 pages and
    `three_bit_table` the others."""

    trunk: Trunk
    memory: list[DeltaMemory | PageMemory]
    shape: StepShape
    cos: torch.Tensor  # f32 [positions, rotated / 2]
    sin: torch.Tensor
    batch: int
    pages: int
    config: Config
    overlap: bool = True
    wide: bool = False  # attention's products in float32, for Triton's interpreter
    only: str = ""  # "products" or "small": what a benchmark times alone
    staging: Staging | None = None
    token_ids: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    slots: torch.Tensor = field(init=False)
    table: torch.Tensor = field(init=False)
    three_bit_table: torch.Tensor = field(init=False)
    logits: torch.Tensor = field(init=False)
    part_cells: int = field(init=False)  # of partial sums, for one row of the batch

    def __post_init__(self) -> None:
        shape, batch, device = self.shape, self.batch, self.trunk.embedding.device
        f32: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.token_ids, self.positions, self.slots = (
            torch.zeros(batch, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.table = torch.zeros(batch, self.pages, dtype=torch.int32, device=device)
        self.three_bit_table = torch.zeros_like(self.table)
        self.logits = torch.zeros(batch, self.trunk.head.rows, **f32)
        self._h, self._squares = torch.zeros(batch, shape.hidden, **f32), torch.ones(batch, 4, **f32)
        self._x: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}
        # Room for four parts of any product, so that another number may be tried later.
        most = max(
            max(self.config[name][0], 4) * matrix.rows
            for name, matrix in products_of(self.trunk).items()
            if name != "head"
        )
        head = self.config["head"][0] * self.trunk.head.rows if self.config["head"][0] > 1 else 0
        self.part_cells = max(most, head)
        self._parts = torch.zeros(batch * self.part_cells, **f32)
        self._q = torch.zeros(batch, shape.heads, shape.head_size, **f32)
        self._runs = runs_of(shape.page_tokens, self.staging)
        self._splits = self._runs.count(self.pages)
        pools = [layer for layer in self.memory if isinstance(layer, PageMemory)]
        if pools:
            self._acc, self._ml = partial_sums(shape.heads, pools[0].keys, batch, self._splits)
        self._signs, self._hadamard = constants(shape.head_size, device)
        self._triton: dict[str, Any] = {"OVERLAP": self.overlap} | ({"launch_pdl": True} if self.overlap else {})

    def _buffer(self, role: str, width: int, matrix: StepMatrix) -> torch.Tensor:
        """Rows for a product with the matrix."""
        key = role, width, ROWS_TYPE[matrix.kind]
        if key not in self._x:
            self._x[key] = torch.zeros(self.batch, width, dtype=key[2], device=self._h.device)
        return self._x[key]

    def _product(self, name: str, matrix: StepMatrix, x: torch.Tensor, *, normed: bool) -> torch.Tensor:
        """Partial sums [parts, batch, rows]; bf16 matrices give one part in bf16, of rows normed before."""
        if matrix.kind == "bf16":
            return torch.mm(x, matrix.codes.T)[None] if self.only != "small" else self._bf16_parts(matrix)
        splits, k_warps = self.config[name]
        if name == "head" and splits == 1:
            y = self.logits[None]
        else:
            y = self._parts[: splits * self.batch * matrix.rows].view(splits, self.batch, matrix.rows)
        if self.only != "small":
            self._launch(matrix, x, y, splits, k_warps, "float", normed)
        return y

    def _bf16_parts(self, matrix: StepMatrix) -> torch.Tensor:
        cells = self.batch * matrix.rows
        return self._parts.view(torch.bfloat16)[:cells].view(1, self.batch, matrix.rows)

    def _launch(
        self,
        matrix: StepMatrix,
        x: torch.Tensor,
        y: torch.Tensor,
        splits: int,
        k_warps: int,
        output: Literal["float", "silu_mul"],
        normed: bool,
    ) -> None:
        assert matrix.multiplier is not None, "a packed matrix has multipliers"
        launch(
            matrix.kind,
            x,
            matrix.codes,
            matrix.scales,
            matrix.multiplier,
            y,
            rows=matrix.rows,
            columns=matrix.columns,
            splits=splits,
            k_warps=k_warps,
            output=output,
            norm=DeferredNorm(self._squares, self.shape.hidden) if normed else None,
            overlap=self.overlap,
        )

    def _add(self, parts: torch.Tensor | None, norm: torch.Tensor, following: StepMatrix) -> torch.Tensor:
        """h += parts; the rows for the next product. For packed matrices they are before their norm."""
        from kernels.rms_norm.device import add_deferred_kernel, rms_norm_kernel

        x = self._buffer("x", self.shape.hidden, following)
        if self.only == "products":
            return x
        hidden = self.shape.hidden
        add_deferred_kernel[(self.batch, 4)](
            self._h if parts is None else parts,
            self._h,
            norm,
            x,
            self._squares,
            self.batch,
            PARTS=0 if parts is None else parts.shape[0],
            WIDTH=hidden,
            BLOCK=1 << (hidden // 4 - 1).bit_length(),
            num_warps=8,
            **self._triton,
        )
        if following.kind == "bf16":
            block = 1 << (hidden - 1).bit_length()
            rms_norm_kernel[(self.batch,)](
                self._h, self._h, norm, x, self._h, hidden, 1e-6, HAS_RESIDUAL=False, BLOCK=block, num_warps=8
            )
        return x

    def _delta(self, layer: DeltaLayer, memory: DeltaMemory, x: torch.Tensor) -> torch.Tensor:
        # With gates of their own, all of the layer's inputs meet their norm inside the fused step.
        late = layer.gates is not None and layer.inward.kind != "bf16"
        parts = self._product("gdn_in", layer.inward, x, normed=not late)
        wide = self._buffer("wide", self.shape.value_heads * self.shape.value_size, layer.outward)
        if self.only == "products":
            return wide
        gates = None if layer.gates is None else torch.mm(x.to(torch.bfloat16), layer.gates.T)
        delta_step(
            parts[:, :, None],
            memory.state,
            self.slots,
            self.slots[:, None],
            memory.ring,
            self.slots,
            self.positions,
            layer.conv,
            layer.a_log,
            layer.dt_bias,
            layer.norm,
            key_heads=self.shape.key_heads,
            out=wide[:, None],
            gates=gates,
            norm=DeferredNorm(self._squares, self.shape.hidden) if late else None,
            overlap=self.overlap,
        )
        return wide

    def _attention(self, layer: AttentionLayer, memory: PageMemory, x: torch.Tensor) -> torch.Tensor:
        from kernels.paged_attention.device import finish_kernel, prepare_kernel

        parts = self._product("attn_in", layer.inward, x, normed=True)
        shape = self.shape
        wide = self._buffer("wide", shape.heads * shape.head_size, layer.outward)
        if self.only == "products":
            return wide
        sizes: dict[str, Any] = {"KV_HEADS": shape.kv_heads, "SIZE": shape.head_size}
        heads: dict[str, Any] = {"HEADS": shape.heads, "ROOT": self._hadamard.shape[0], "PARTS": parts.shape[0]}
        prepare_kernel[(self.batch, shape.heads + 2 * shape.kv_heads)](
            parts,
            layer.q_norm,
            layer.k_norm,
            self.cos,
            self.sin,
            self._signs,
            self._hadamard,
            self.positions,
            self.table,
            self._q,
            memory.keys,
            memory.values,
            1,
            self.pages,
            self.batch,
            HALF=self.cos.shape[1],
            PAGE=shape.page_tokens,
            num_warps=2,
            **sizes,
            **heads,
            **self._triton,
        )
        attend_pages(
            self._q,
            memory.keys,
            memory.values,
            self.table,
            self.positions,
            self._acc,
            self._ml,
            heads=shape.heads,
            rows=1,
            runs=self._runs,
            scale=shape.head_size**-0.5,
            three_bit=self._three_bit(memory),
            wide=self.wide,
            overlap=self.overlap,
        )
        finish_kernel[(self.batch, shape.heads)](
            self._acc,
            self._ml,
            self.positions,
            parts,
            self._signs,
            self._hadamard,
            wide,
            1,
            self.batch,
            self._splits,
            PAGE=shape.page_tokens,
            num_warps=8,
            **self._runs.constants,
            **sizes,
            **heads,
            **self._triton,
        )
        return wide

    def _three_bit(self, memory: PageMemory) -> tuple[Encoded, Encoded, torch.Tensor, Staging] | None:
        if not isinstance(memory, PagePools):
            return None
        assert self.staging is not None, "pages in two stages need the rule"
        return memory.three_bit_keys, memory.three_bit_values, self.three_bit_table, self.staging

    def _feed_forward(self, layer: StepLayer, x: torch.Tensor) -> torch.Tensor:
        from kernels.rms_norm.device import silu_mul_kernel

        middle = self._buffer("middle", self.shape.inner, layer.down)
        splits, k_warps = self.config["gate_up"]
        # The fused end writes the type of the rows that came in.
        if layer.gate_up.kind != "bf16" and splits == 1 and k_warps != WIDE and middle.dtype == x.dtype:
            if self.only != "small":
                self._launch(layer.gate_up, x, middle, splits, k_warps, "silu_mul", True)
            return middle
        parts = self._product("gate_up", layer.gate_up, x, normed=True)
        if self.only != "products":
            silu_mul_kernel[(self.batch, -(-self.shape.inner // 1024))](
                parts,
                middle,
                self.batch,
                PARTS=parts.shape[0],
                WIDTH=2 * self.shape.inner,
                BLOCK=1024,
                **self._triton,
            )
        return middle

    def run(self, layers: int | None = None, *, head: bool = True) -> None:
        """All layers, or the first `layers` of them."""
        trunk = self.trunk
        self._h.copy_(trunk.embedding.rows(self.token_ids))
        parts: torch.Tensor | None = None
        for layer, memory in zip(trunk.layers[:layers], self.memory, strict=False):
            x = self._add(parts, layer.input_norm, layer.mixer.inward)
            if isinstance(layer.mixer, DeltaLayer):
                assert isinstance(memory, DeltaMemory)
                wide = self._delta(layer.mixer, memory, x)
            else:
                assert isinstance(memory, PageMemory)
                wide = self._attention(layer.mixer, memory, x)
            out = self._product("out", layer.mixer.outward, wide, normed=False)
            x = self._add(out, layer.post_norm, layer.gate_up)
            parts = self._product("down", layer.down, self._feed_forward(layer, x), normed=False)
        if not head:
            return
        x = self._add(parts, trunk.norm, trunk.head)
        logits = self._product("head", trunk.head, x, normed=True)
        if logits.data_ptr() != self.logits.data_ptr():
            torch.sum(logits, 0, dtype=torch.float32, out=self.logits)

    def capture(self, layers: int | None = None, *, head: bool = True) -> torch.cuda.CUDAGraph:
        """A graph of `run`; replaying it reads the buffers as they are then."""
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            self.run(layers, head=head)  # builds and loads what capture must not
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.run(layers, head=head)
        return graph
