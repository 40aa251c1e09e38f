"""`interface.Model` on an NVIDIA GPU: decoding through the fused step, prompts as ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence as CoreSequence
from inference_grpc.core.staged import StagedPages
from inference_grpc.model.cuda.decode import BATCHES, CONTEXTS, DecodeSteps, batch_bucket
from inference_grpc.model.cuda.memory import DeviceMemory
from inference_grpc.model.cuda.ragged import RaggedForward
from inference_grpc.model.cuda.weights import DeviceWeights
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.memory import KvFormat, three_bit_bytes
from kernels.gated_delta_rule.reference import CHUNK
from kernels.gated_delta_rule.step import HEAD_SIZE
from kernels.hybrid_step import MOST_ROWS, RING, Splits, StepShape
from kernels.paged_attention.launch import NATIVE_GROUP, NATIVE_PAGE, NATIVE_SIZE
from kernels.paged_attention.stage import Staging
from kernels.paths import Choice
from kernels.rotary.reference import rotary_table

# Tokens of the prompts of a trial.
_TRIAL = (130, 9, 70)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that was computed before it was asked for."""

    rows: dict[tuple[int, int, int], int]  # by sequence, position and slot
    logits: torch.Tensor
    sequences: list[CoreSequence]  # held, so that the identity of one that is gone is not another's

    def row(self, chunk: Chunk) -> int | None:
        if chunk.count != 1:
            return None
        return self.rows.get((id(chunk.sequence), chunk.start, _slot(chunk)))


class CudaHybridModel:
    """`ways`: what of the table in `kernels/paths.py` is on; nothing of it leaves plain PyTorch, which runs on any
    device and is what the fast ways are held to.

    `invariant`: every product has one order of sums whatever the number of rows, so a text does not depend on what runs
    beside it; slower.
    """

    block_tokens = CHUNK
    verifies_drafts = False

    def __init__(
        self,
        name: str,
        config: HybridConfig,
        weights: DeviceWeights,
        ways: Choice,
        *,
        precision: str,
        vocabulary: int,
        kv_format: KvFormat,
        invariant: bool = False,
        splits: Splits | None = None,
        staging: Staging | None = None,
    ) -> None:
        self.name, self.config, self.precision, self.vocabulary = name, config, precision, vocabulary
        self.context_tokens = config.context_tokens
        self.ways = ways
        self.weights = weights
        self._device = weights.trunk.embedding.device
        self.device = str(self._device)
        self.samples_on_device = "sampler" in ways
        self._is_fused = "fused" in ways
        self._invariant = invariant
        self._splits = splits or {}
        wide = torch.bfloat16 if self._is_fused else torch.float32
        self._cache = wide if kv_format == "float32" else torch.float8_e4m3fn
        self.staging = staging
        self._ring = wide
        self._memory: DeviceMemory | None = None
        self._ragged: RaggedForward | None = None
        self._steps: DecodeSteps | None = None
        self._ahead: _Ahead | None = None

    @property
    def state_bytes(self) -> int:
        config = self.config
        state = config.value_heads * config.key_size * config.value_size * 4
        ring = RING * config.conv_channels * self._ring.itemsize
        return config.linear_layers * (state + ring)

    @property
    def page_token_bytes(self) -> int:
        return self.config.full_layers * 2 * self.config.kv_heads * self.config.head_size * self._cache.itemsize

    @property
    def three_bit_token_bytes(self) -> int:
        values = self.config.full_layers * 2 * self.config.kv_heads * self.config.head_size
        return three_bit_bytes(values, self.config.head_size)

    @torch.inference_mode()
    def is_batch_invariant(self) -> bool:
        """Tried with the model itself, before it serves: prompts and tokens alone, and together."""
        if self._memory is None or not self._invariant:
            return False
        together, alone = self._trial(slice(None)), [self._trial(slice(n, n + 1)) for n in range(len(_TRIAL))]
        return all(
            together[step][n].equal(rows[step][0]) for n, rows in enumerate(alone) for step in range(len(together))
        )

    def _trial(self, which: slice) -> list[torch.Tensor]:
        """Logits of the prompts' ends and of a token after each, on pages and slots that hold nothing yet."""
        assert self._memory is not None
        page_tokens, sequences, page = self._memory.page_tokens, [], 0
        for number, tokens in enumerate(_TRIAL):
            ids = [(7 * number + 3 * place) % self.vocabulary for place in range(tokens)]
            sequence = CoreSequence(
                key=number, choice=0, prompt_ids=ids, sampling=SamplingParams(), seed=0, max_tokens=2
            )
            held = -(-(tokens + 1) // page_tokens)
            sequence.page_ids = [min(page + n, self._memory.padding_page) for n in range(held)]
            sequence.state_slot, page = min(number, self._memory.padding_slot), page + held
            sequences.append(sequence)
        found = [self.forward(Batch([Chunk(each, 0, len(each.token_ids)) for each in sequences[which]])).clone()]
        for each in sequences[which]:
            each.append(1)
        found.append(self.forward(Batch([Chunk(each, len(each.prompt_ids), 1) for each in sequences[which]])).clone())
        return found

    def allocate(
        self,
        *,
        pages: int,
        page_tokens: int,
        state_slots: int,
        host_pages: int = 0,
        host_states: int = 0,
        staged: StagedPages | None = None,
    ) -> None:
        if self._is_fused and (page_tokens < 16 or page_tokens & (page_tokens - 1)):
            raise ValueError(f"page_tokens is {page_tokens}; on this device it must be a power of two from 16 on.")
        if CHUNK % page_tokens and page_tokens % CHUNK:
            raise ValueError(f"page_tokens is {page_tokens}; it must divide {CHUNK} or be a multiple of it.")
        config = self.config
        memory = DeviceMemory(
            config,
            pages=pages,
            page_tokens=page_tokens,
            slots=state_slots,
            host_pages=host_pages,
            host_states=host_states,
            cache=self._cache,
            ring=self._ring,
            device=self._device,
            staged=staged,
        )
        positions = min(config.context_tokens, memory.most_tokens) + 1
        rope = config.rope
        tables = rotary_table(positions, config.rotated, config.rope_base, self._device, rope.factors)
        if rope.magnitude != 1.0:
            tables = tables[0] * rope.magnitude, tables[1] * rope.magnitude
        self._memory = memory
        self._ragged = RaggedForward(config, self.weights, memory, self.ways, *tables)
        if self._is_fused:
            shape = StepShape(
                hidden=config.hidden,
                inner=config.feed_forward,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_size=config.head_size,
                key_heads=config.key_heads,
                value_heads=config.value_heads,
                value_size=config.value_size,
                page_tokens=page_tokens,
            )
            self._steps = DecodeSteps(
                self.weights.trunk, shape, memory, self.ways, *tables, invariant=self._invariant, splits=self._splits
            )

    def warm_up(self, sequences: int) -> None:
        """The steps of all batch sizes up to that many sequences, at the least context."""
        most = batch_bucket(min(sequences, MOST_ROWS))
        self.prepare_steps([size for size in BATCHES if size <= most], CONTEXTS[0])

    @torch.inference_mode()
    def prepare_steps(self, batches: Sequence[int], tokens: int) -> None:
        """Build the steps for these batch sizes at a context of `tokens`, so that no request waits for a compiler."""
        if self._steps is not None:
            for batch in batches:
                self._steps.prepare(batch, tokens)

    @torch.inference_mode()
    def run_ahead(self, batch: Batch, token_ids: torch.Tensor) -> None:
        chunks = batch.chunks
        if self._steps is None or self._memory is None or not 0 < len(chunks) <= MOST_ROWS:
            return
        page_tokens = self._memory.page_tokens
        for chunk in chunks:
            # Generated tokens only: where a prompt ends, others may begin with its state. And only into own pages.
            sequence = chunk.sequence
            is_generated = chunk.count == 1 and chunk.samples and chunk.start >= sequence.prompt_tokens
            if not is_generated or chunk.forks or len(sequence.page_ids) * page_tokens <= chunk.end:
                return
        logits = self._steps.ahead(chunks, token_ids)
        rows = {(id(chunk.sequence), chunk.end, _slot(chunk)): row for row, chunk in enumerate(chunks)}
        self._ahead = _Ahead(rows, logits, [chunk.sequence for chunk in chunks])

    @torch.inference_mode()
    def clear_pages(self, page_ids: Sequence[int]) -> None:
        assert self._memory is not None, "allocate comes first"
        self._memory.clear_pages(page_ids)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        assert self._memory is not None, "allocate comes first"
        assert self._ragged is not None, "allocate comes first"
        self._memory.move(batch.moves)
        self._memory.clear_slots([_slot(chunk) for chunk in batch.chunks if chunk.start == 0])
        ahead, self._ahead = self._ahead, None
        known = [ahead.row(chunk) if ahead is not None else None for chunk in batch.chunks]
        if ahead is not None and known == list(range(len(ahead.rows))):
            return ahead.logits[:, : self.vocabulary]
        logits: dict[int, torch.Tensor] = {}
        for chunk, row in zip(batch.chunks, known, strict=True):
            if ahead is not None and row is not None:
                logits[id(chunk)] = ahead.logits[row]
        left = [chunk for chunk in batch.chunks if id(chunk) not in logits]
        # A row of decoding takes the same way whether prompts run beside it or not.
        decoding = [chunk for chunk in left if self._steps is not None and chunk.count == 1]
        others = [chunk for chunk in left if self._steps is None or chunk.count > 1]
        if decoding:
            assert self._steps is not None
            found = self._steps(decoding)
            if len(decoding) == len(batch.chunks) and all(chunk.samples for chunk in decoding):
                return found[:, : self.vocabulary]
            logits |= {id(chunk): row for chunk, row in zip(decoding, found, strict=True)}
        if others:
            logits |= {id(chunk): row for chunk, row in zip(others, self._ragged(others), strict=True)}
        rows = [logits[id(chunk)] for chunk in batch.chunks if chunk.samples]
        if not rows:
            return torch.empty(0, self.vocabulary, device=self._device)
        return torch.stack(rows)[:, : self.vocabulary]


def _slot(chunk: Chunk) -> int:
    assert chunk.sequence.state_slot is not None, "a running sequence of a model with state has a slot"
    return chunk.sequence.state_slot


def chunk_misfit(config: HybridConfig) -> str:
    """Why neither the fused step nor the chunked way can take heads of this size; empty where they can."""
    if (config.key_size, config.value_size) != (HEAD_SIZE, HEAD_SIZE):
        sizes = f"[{config.key_size}, {config.value_size}]"
        return f"heads of Gated DeltaNet of {sizes} are not [{HEAD_SIZE}, {HEAD_SIZE}]"
    return ""


def staged_misfit(config: HybridConfig, staging: Staging) -> str:
    """Why the kernels of the staged cache cannot take heads and pages of these sizes; empty where they can."""
    if staging.page_tokens != NATIVE_PAGE:
        return f"pages of {staging.page_tokens} tokens are not of {NATIVE_PAGE}"
    if config.head_size != NATIVE_SIZE:
        return f"a head size of {config.head_size} is not {NATIVE_SIZE}"
    if config.heads // config.kv_heads > NATIVE_GROUP:
        return f"{config.heads // config.kv_heads} query heads share a key head; at most {NATIVE_GROUP} may"
    return ""


def misfit(config: HybridConfig) -> str:
    """Why the fused step cannot take a model of this shape; empty where it can."""
    if unfit := chunk_misfit(config):
        return unfit
    if config.head_size not in (256, 1024):
        return f"a head size of {config.head_size} is not 256 or 1024"
    if config.heads // config.kv_heads > 16:
        return f"{config.heads // config.kv_heads} query heads share a key head; at most 16 may"
    for name, columns in (("hidden", config.hidden), ("feed_forward", config.feed_forward)):
        if columns % 64:
            return f"{name} of {columns} is not a multiple of 64"
    if abs(config.norm_epsilon - 1e-6) > 1e-9:
        return f"a norm epsilon of {config.norm_epsilon:g} is not 1e-6"
    assert RING >= CONV_TAPS
    return ""
