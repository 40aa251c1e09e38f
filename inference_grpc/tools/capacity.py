"""How many long contexts stay resident, asked of the scheduler and the allocator that serve: no formula, no GPU.

The memory that is left beside the weights is laid out as the engine would lay it out, then sequences are computed to
their last token and held there until one more is not admitted. A step is taken as run: what counts here is pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.config import EngineConfig
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.pools import Pools, pools_of
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.memory import KvFormat, three_bit_bytes
from inference_grpc.model.rope import RopeScaling
from inference_grpc.model.sizes import cache_size
from kernels.gated_delta_rule.reference import CHUNK
from kernels.paged_attention.stage import Staging

PAGE_TOKENS = 64  # what the kernels of a staged cache take
PREFILL_TOKENS = 8192
# The 27B model: 64 layers, every fourth of them attention.
MODEL_27B = HybridConfig(
    hidden=5120,
    feed_forward=17408,
    layer_kinds=tuple("full_attention" if n % 4 == 3 else "linear_attention" for n in range(64)),
    vocabulary=248320,
    context_tokens=262_144,
    norm_epsilon=1e-6,
    is_tied=False,
    heads=24,
    kv_heads=4,
    head_size=256,
    rotated=64,
    rope_base=10_000_000.0,
    rope=RopeScaling("default", (1.0,) * 32, 262_144),
    key_heads=16,
    value_heads=48,
    key_size=128,
    value_size=128,
)


@dataclass(frozen=True, slots=True)
class Costs:
    """What the engine's pools want to know of a model (`engine/pools.py`)."""

    page_token_bytes: int
    three_bit_token_bytes: int
    state_bytes: int
    staging: Staging | None
    block_tokens: int = CHUNK


@dataclass(frozen=True, slots=True)
class Resident:
    """What was held when no further context was admitted."""

    contexts: int
    pages: int  # that they hold, in FP8 or the one kind there is
    three_bit_pages: int
    kv_bytes: int  # of these
    pool_bytes: int  # of all pages, room for steps and padding too
    state_bytes: int


def costs_of(kv: KvFormat, staging: Staging | None, config: HybridConfig = MODEL_27B) -> Costs:
    """As on a GPU."""
    size = cache_size(config, kv, "cuda")
    values = config.full_layers * 2 * config.kv_heads * config.head_size
    return Costs(size.token_bytes, three_bit_bytes(values, config.head_size), size.state_bytes, staging)


def holders(pools: Pools, contexts: int, block_tokens: int, prefill_tokens: int) -> tuple[CacheCoordinator, Scheduler]:
    """What admits and holds so many contexts in these pools. One more may run than there is room for: pages must be
    what keeps it out."""
    cache = CacheCoordinator(
        pages=pools.pages,
        page_tokens=PAGE_TOKENS,
        state_slots=contexts + 1,
        block_tokens=block_tokens,
        staged=pools.staged,
    )
    return cache, Scheduler(
        cache,
        max_sequences=contexts + 1,
        prefill_tokens=prefill_tokens,
        block_tokens=block_tokens,
        reserves_output=True,
    )


def fill(costs: Costs, *, tokens: int, memory: int) -> Resident:
    """The most contexts of so many tokens that `memory` bytes hold, computed and held. Raises `ValueError` if not one
    fits."""
    contexts = 0
    while _bytes(costs, contexts + 1, tokens) <= memory:
        contexts += 1
    if not contexts:
        raise ValueError(f"not one context of {tokens} tokens fits into {memory / 2**30:.1f} GiB")
    pools = _pools(costs, contexts, tokens)
    cache, scheduler = holders(pools, contexts, costs.block_tokens, PREFILL_TOKENS)
    for number in range(contexts + 1):
        scheduler.add(_sequence(number, tokens))
    while True:
        batch = scheduler.schedule()
        if not batch.chunks:
            break
        scheduler.commit(batch)
    resident = scheduler.running
    cache.check_integrity(scheduler.sequences())
    if any(sequence.remaining for sequence in resident) or scheduler.preemptions or not scheduler.waiting:
        raise AssertionError(f"{len(resident)} contexts run, but not as they were laid out: {contexts}")
    page, three_bit = pools.page_bytes(costs, PAGE_TOKENS)
    held, stale = cache.pool.held, cache.stale.pool.held
    return Resident(
        contexts=len(resident),
        pages=held,
        three_bit_pages=stale,
        kv_bytes=held * page + stale * three_bit,
        pool_bytes=pools.nbytes(costs, PAGE_TOKENS),
        state_bytes=(contexts + 2) * costs.state_bytes,
    )


def report(
    *, tokens: int, anchors: int, recent: int, envelope_gib: float, weights_gb: float, fp8_weights_gb: float
) -> str:
    """The staged cache, against an FP8 cache beside FP8 weights and beside the same weights."""
    rule = Staging(PAGE_TOKENS, anchors, recent)
    envelope = int(envelope_gib * 2**30)
    memory, fp8_memory = envelope - int(weights_gb * 1e9), envelope - int(fp8_weights_gb * 1e9)
    staged = fill(costs_of("staged", rule), tokens=tokens, memory=memory)
    baseline = fill(costs_of("fp8", None), tokens=tokens, memory=fp8_memory)
    same = fill(costs_of("fp8", None), tokens=tokens, memory=memory)
    bf16 = costs_of("float32", None).page_token_bytes * tokens  # which is what float32 means on a GPU
    each, pool = staged.kv_bytes / staged.contexts, staged.pool_bytes / staged.contexts
    pages, stale = staged.pages / staged.contexts, staged.three_bit_pages / staged.contexts
    return "\n".join(
        [
            f"contexts of {tokens} tokens, pages of {PAGE_TOKENS}; anchors {anchors}, recent pages {recent}",
            f"page ages: {pages:.1f} pages of a context in FP8, {stale:.1f} in three bits "
            f"({stale / (pages + stale):.1%})",
            f"keys and values of a context: BF16 {bf16 / 2**20:.1f} MiB, FP8 {bf16 / 2**21:.1f} MiB, "
            f"staged {each / 2**20:.1f} MiB: {bf16 / each:.2f} times smaller than BF16",
            f"whole pool, room for a step and padding included: {pool / 2**20:.1f} MiB a context, "
            f"{bf16 / pool:.2f} times smaller than BF16",
            f"{envelope_gib:g} GiB, states of Gated DeltaNet included "
            f"({staged.state_bytes / staged.contexts / 2**20:.0f} MiB a context):",
            f"  FP8 weights of {fp8_weights_gb:g} GB, FP8 cache: {baseline.contexts} contexts",
            f"  weights of {weights_gb:g} GB, FP8 cache: {same.contexts} contexts",
            f"  weights of {weights_gb:g} GB, staged cache: {staged.contexts} contexts, "
            f"{staged.contexts / baseline.contexts:.2f} and {staged.contexts / same.contexts:.2f} times as many",
        ]
    )


def _sequence(number: int, tokens: int) -> Sequence:
    """Of a text of its own, which stays where its last token is computed."""
    return Sequence(
        key=number,
        choice=0,
        prompt_ids=[number, *range(1, tokens)],
        sampling=SamplingParams(),
        seed=0,
        max_tokens=0,
        arrival=number,
    )


def _pools(costs: Costs, contexts: int, tokens: int) -> Pools:
    rule = costs.staging
    config = EngineConfig(
        max_sequences=contexts,
        page_tokens=PAGE_TOKENS,
        pages=contexts * -(-tokens // PAGE_TOKENS),
        prefill_tokens=PREFILL_TOKENS,
        kv_anchor_pages=rule.anchors if rule else 0,
        kv_recent_pages=rule.recent if rule else 2,
    )
    return pools_of(config, costs)


def _bytes(costs: Costs, contexts: int, tokens: int) -> int:
    """A state for each context, one that is kept and one that pads."""
    return _pools(costs, contexts, tokens).nbytes(costs, PAGE_TOKENS) + (contexts + 2) * costs.state_bytes
