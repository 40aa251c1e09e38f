"""The whole engine over a cache in two stages, through its plain form: one text per request, whatever happens to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.core.batch import Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import NO_PAGE, StagedPages
from inference_grpc.engine import load_backend
from inference_grpc.engine.pools import pools_of
from inference_grpc.engine.room import refusal
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.events import Event, Failed, Finished, Started, TextDelta
from inference_grpc.model.cuda import load as cuda_load
from inference_grpc.model.cuda.decode import DecodeSteps, HostInputs
from inference_grpc.model.cuda.model import CudaHybridModel
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.interface import Model
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.recipe import Recipe
from inference_grpc.model.staged import StagedPool, rotated
from inference_grpc.model.tiny import write_tiny
from kernels.hybrid_step import DecodeStep, StepShape
from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.stage import Staging
from kernels.paths import Choice
from kernels.rotary.reference import rotary_table
from kernels.turboquant.reference import rotate, signs
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import Client, complete, text_of, usage_of

PAGE, RULE = 16, Staging(16, 1, 4)
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 20}
STAGED: dict[str, Any] = {
    "kv_cache": "staged",
    "kv_anchor_pages": RULE.anchors,
    "kv_recent_pages": RULE.recent,
    "max_sequences": 4,
    "checkpoint_mib": 1,
    "packed_mib": 0,
}
PROMPTS = ["the " + "hello " * 40, "tell the tale of the heroes " * 6]
# Six or seven of them in three bits: for both prompts, but not for both texts to their ends.
CROWDED: dict[str, Any] = {"max_sequences": 2, "pages": 16}
LONG = "tell the tale of the hero " * 6


@pytest.fixture(params=["qwen3_5", "llama"])
def model_path(request: pytest.FixtureRequest, hybrid_path: Path, tiny_path: Path) -> Path:
    return hybrid_path if request.param == "qwen3_5" else tiny_path


@pytest.fixture
def make_staged(make_client: MakeClient, hybrid_path: Path) -> MakeClient:
    def make(**settings: Any) -> Client:
        return make_client(**({"model": str(hybrid_path), "pages": 100} | STAGED | settings))

    return make


def texts(client: Client, *requests: Any) -> list[str]:
    return [text_of(events) for events in client.run(*requests)]


def test_one_text_alone_in_a_batch_in_small_chunks_after_preemption_and_from_found_pages(
    make_staged: MakeClient, model_path: Path
) -> None:
    requests = [complete(prompt, **ENDLESS) for prompt in PROMPTS]
    client = make_staged(model=str(model_path))
    alone = [texts(client, request)[0] for request in requests]
    cache = client.backend.engine.cache
    assert cache.stale.pool.cached > 0, "nothing was demoted"
    (found,) = client.run(requests[0])  # what is read in three bits now was encoded for another request
    assert (text_of(found), usage_of(found).cached_tokens >= 64) == (alone[0], True)
    assert texts(make_staged(model=str(model_path), prefill_tokens=17), *requests) == alone
    crowded = [make_staged(model=str(model_path), **CROWDED | {"pages": pages}) for pages in (16, 17)]
    assert [texts(each, *requests) for each in crowded] == [alone, alone]
    assert sum(each.backend.engine.scheduler.preemptions for each in crowded) > 0
    info = crowded[1].backend.info()
    assert (info.three_bit_pages_total, info.three_bit_pages_held, info.pages_held) == (7, 0, 0)


def test_prompts_of_odd_sizes_that_are_cut_anywhere_left_half_way_and_found_behind_stale_pages(
    make_staged: MakeClient, model_path: Path
) -> None:
    """Log-probabilities to the bit. A text shares its first pages with longer ones, which read them in three bits."""
    model, text = str(model_path), [7 + 3 * place % 190 for place in range(170)]
    sizes = (79, 80, 81, 127, 161)
    asked: dict[str, Any] = {"ignore_eos": True, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    requests = [complete(text[:size], **asked) for size in sizes]

    def told(events: list[Event]) -> list[Any]:
        return [event.logprobs for event in events if isinstance(event, TextDelta)]

    fresh = make_staged(model=model)
    expected = []
    for request in requests:
        expected.append(told(fresh.run(request)[0]))
        fresh.backend.engine.cache.forget_prefixes()  # nothing runs: the thread sleeps
    for prefill_tokens in (1, 33):
        client = make_staged(model=model, prefill_tokens=prefill_tokens)

        def leave(key: int, event: Event, client: Client = client) -> None:
            if key % 2 and isinstance(event, Started):  # its first chunk is at work, and is all that is computed of it
                client.backend.cancel(key)

        client.on_event = leave
        found = 0
        for request, mine in zip(
            requests[::-1], expected[::-1], strict=True
        ):  # the longest first: others find its pages
            left, (whole,) = client.wait(client.submit(request)), client.run(request)
            assert isinstance(left[-1], Finished)
            assert left[-1].cancelled
            assert told(whole) == mine
            found += usage_of(whole).cached_tokens
        assert found > 0
        assert client.backend.engine.cache.stale.pool.cached > 0


def test_what_went_to_host_memory_comes_back_in_its_stages(make_staged: MakeClient) -> None:
    requests = [complete(prompt, **ENDLESS) for prompt in PROMPTS]
    alone = [texts(make_staged(), request)[0] for request in requests]
    swapping = make_staged(swap_mib=2, **CROWDED)
    assert texts(swapping, *requests) == alone
    assert swapping.backend.engine.scheduler.swaps > 0


def test_choices_and_drafts_say_what_lone_texts_say(make_staged: MakeClient) -> None:
    request: dict[str, Any] = {"ignore_eos": True, "max_tokens": 10, "sampling": {"temperature": 1.2, "seed": 5}}
    plain = make_staged()
    (events,) = plain.run(complete(LONG, n=2, **request))
    both = [text_of(events, choice) for choice in range(2)]
    assert both[0] == texts(plain, complete(LONG, **request))[0]
    drafting = make_staged(draft_tokens=2)
    assert drafting.backend.info().draft_head.startswith("mtp")
    assert texts(drafting, complete(LONG, **ENDLESS)) == texts(plain, complete(LONG, **ENDLESS))


def test_values_that_are_not_finite_stay_in_no_page(make_staged: MakeClient) -> None:
    client = make_staged()
    expected = texts(client, complete(LONG, **ENDLESS))
    embedding: torch.Tensor = client.backend.engine._runner._model._weights.embedding  # type: ignore[attr-defined]
    sound = embedding[99].clone()
    embedding[99] = float("nan")
    (bad,) = client.run(complete([99] * 130, max_tokens=8))
    embedding[99] = sound
    assert isinstance(bad[-1], Failed)
    assert client.backend.engine.cache.stale.pool.cached == 0
    assert texts(client, complete(LONG, **ENDLESS)) == expected


def test_the_rotation_by_additions_is_the_one_of_the_kernels() -> None:
    x = torch.randn(7, 2, 64)
    torch.testing.assert_close(rotated(x, signs(64)), rotate(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(rotated(x[3:4], signs(64)), rotated(x, signs(64))[3:4])


def load(path: Path, staged: StagedPages | None, kv: str = "staged") -> Model:
    opened = open_checkpoint(path)
    recipe = Recipe("here", (), kv=kv)  # type: ignore[arg-type]
    model = load_model(opened, name="t", vocabulary=200, recipe=recipe, staging=staged.rule if staged else None)
    pools = model.model
    pools.allocate(pages=40, page_tokens=PAGE, state_slots=4 if pools.state_bytes else 0, staged=staged)
    return pools


def follow(model: Model, tokens: list[int], staged: StagedPages | None, *, prompt: int = 60) -> list[torch.Tensor]:
    """Log-probabilities after the first tokens, then after each further one, which is given."""
    slots, block = 4 if model.state_bytes else 0, model.block_tokens
    cache = CacheCoordinator(pages=40, page_tokens=PAGE, state_slots=slots, block_tokens=block, staged=staged)
    scheduler = Scheduler(cache, max_sequences=1, prefill_tokens=64, block_tokens=block)
    sequence = Sequence(
        key=0, choice=0, prompt_ids=tokens[:prompt], sampling=SamplingParams(), seed=0, max_tokens=len(tokens)
    )
    scheduler.add(sequence)
    found: list[torch.Tensor] = []
    while len(sequence.token_ids) < len(tokens):
        batch = scheduler.schedule()
        logits = model.forward(batch)
        scheduler.commit(batch)
        if batch.ends:
            found.append(logits[0].log_softmax(-1))
            sequence.append(tokens[len(sequence.token_ids)])
    scheduler.remove(sequence)
    cache.check_integrity([])
    return found


# Of log-probabilities against a float32 cache, root mean square over tokens and vocabulary, with up to a third of the
# text in three bits; and how many times the error of an FP8 cache that may be.
MOST_FP8, MOST_STAGED, MOST_TIMES = 0.02, 0.06, 5.0


@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
def test_log_probabilities_stay_near_those_of_a_wide_cache(tmp_path: Path, family: str) -> None:
    model_path = write_tiny(tmp_path / family, family)
    tokens = torch.randint(0, 200, (130,), generator=torch.Generator().manual_seed(3)).tolist()
    staged = StagedPages(RULE, 20, 64)
    wide, narrow, two = (
        torch.stack(follow(load(model_path, each, kv), tokens, each))
        for each, kv in ((None, "float32"), (None, "fp8"), (staged, "staged"))
    )
    stale_from = 80 - 60  # the first query that reads a page in three bits
    off, off_fp8 = (float((other - wide)[stale_from:].square().mean().sqrt()) for other in (two, narrow))
    assert 0 < off_fp8 <= MOST_FP8
    assert off_fp8 < off <= min(MOST_STAGED, MOST_TIMES * off_fp8)
    early = float((two[:stale_from] - wide[:stale_from]).square().mean().sqrt())
    assert early <= MOST_FP8, "without stale pages it is an FP8 cache"


def test_the_form_of_a_gpu_reads_the_same_pages_as_that_of_a_cpu(
    hybrid_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plain way, in chunks that cross pages and steps of one row; kept values may be rounded the other way."""
    tokens = torch.randint(0, 200, (130,), generator=torch.Generator().manual_seed(4)).tolist()
    staged = StagedPages(RULE, 20, 64)
    model = on_gpu(hybrid_path, monkeypatch, staged)
    expected = torch.stack(follow(load(hybrid_path, staged), tokens, staged, prompt=100))
    found = torch.stack(follow(model, tokens, staged, prompt=100))
    assert float((found - expected).square().mean().sqrt()) <= 0.005
    wide = torch.stack(follow(load(hybrid_path, None, "float32"), tokens, None, prompt=100))
    assert float((found - wide).square().mean().sqrt()) > float((found - expected).square().mean().sqrt())
    assert model._memory is not None
    inputs = HostInputs.make(2, 10, kinds=2, pinned=False)
    sequence = Sequence(key=0, choice=0, prompt_ids=tokens, sampling=SamplingParams(), seed=0, max_tokens=1)
    sequence.page_ids, sequence.three_bit_ids, sequence.state_slot = [3, NO_PAGE, 5, 6], [NO_PAGE, 2], 1
    inputs.fill([Chunk(sequence, 60, 1)], model._memory)
    assert inputs.tables.tolist() == [[[3, 40, 5, 6] + [40] * 6, [40] * 10], [[20, 2] + [20] * 8, [20] * 10]]


def test_the_buffers_of_a_captured_step_get_both_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the step that a graph replays; its launches are left out here."""
    staged = StagedPages(RULE, 20, 64)
    model = on_gpu(write_tiny(tmp_path / "square", head_dim=64), monkeypatch, staged)
    assert model._memory is not None
    ran: list[DecodeStep] = []
    monkeypatch.setattr(DecodeStep, "run", lambda step: ran.append(step))
    config, tables = model.config, rotary_table(700, model.config.rotated, model.config.rope_base, torch.device("cpu"))
    sizes = (config.heads, config.kv_heads, config.head_size, config.key_heads, config.value_heads, config.value_size)
    shape = StepShape(config.hidden, config.feed_forward, *sizes, PAGE)
    steps = DecodeSteps(
        model.weights.trunk, shape, model._memory, Choice(frozenset(), ()), *tables, invariant=False, splits={}
    )
    sequence = Sequence(key=0, choice=0, prompt_ids=[5] * 100, sampling=SamplingParams(), seed=0, max_tokens=1)
    sequence.page_ids = [9, NO_PAGE, NO_PAGE, 4, 5, 6, 7]
    sequence.three_bit_ids, sequence.state_slot = [NO_PAGE, 3, 8], 2
    steps([Chunk(sequence, 99, 1)])
    (step,) = ran
    pages = step.pages
    assert step.staging == RULE
    assert step.table.tolist() == [[9, 40, 40, 4, 5, 6, 7] + [40] * (pages - 7)]
    assert step.three_bit_table.tolist() == [[20, 3, 8] + [20] * (pages - 3)]
    pools = [layer for layer in step.memory if isinstance(layer, PagePools)]
    keys, values, table, rule = step._three_bit(pools[0]) or (None, None, None, None)
    assert (keys, values, rule) == (pools[0].three_bit_keys, pools[0].three_bit_values, RULE)
    assert table is step.three_bit_table


def on_gpu(path: Path, monkeypatch: pytest.MonkeyPatch, staged: StagedPages) -> CudaHybridModel:
    monkeypatch.setattr(cuda_load, "choose", lambda *arguments, **named: Choice(frozenset({"staged"}), ()))
    opened = open_checkpoint(path)
    assert isinstance(opened.config, HybridConfig)
    model, _ = cuda_load.load_cuda_hybrid(
        opened.checkpoint,
        opened.config,
        name="t",
        vocabulary=200,
        recipe=Recipe("here", (), kv="staged"),
        device=torch.device("cpu"),
        passed=lambda gate: True,
        staging=RULE,
    )
    model.allocate(pages=40, page_tokens=PAGE, state_slots=4, staged=staged)
    return model


def test_what_is_in_three_bits_is_what_is_read(hybrid_path: Path) -> None:
    """Were the FP8 copy read instead, nothing would change when the other one is spoilt."""
    tokens = list(range(100))
    staged = StagedPages(RULE, 20, 64)
    expected = follow(load(hybrid_path, staged), tokens, staged)
    model = load(hybrid_path, staged)
    for pool in model._pools:  # type: ignore[attr-defined]
        if isinstance(pool, StagedPool):
            pool.move = lambda move, move_on=pool.move: None if move.kind == "demotion" else move_on(move)  # type: ignore[method-assign]
    spoilt = follow(model, tokens, staged)
    assert all(torch.equal(a, b) for a, b in zip(expected[:20], spoilt[:20], strict=True))
    assert not torch.equal(expected[21], spoilt[21])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_recent_pages": 3}, "ENGINE_KV_RECENT_PAGES .*64 that this model computes together; use at least 4"),
        ({"pages": 20}, "4 sequences with 1 anchors and 4 recent pages each keep 20 pages in FP8"),
        ({"page_tokens": 8}, "ENGINE_KV_CACHE .*page_tokens must be a power of two from 16 on, not 8"),
    ],
)
def test_settings_that_make_no_two_stages_are_refused(
    make_staged: MakeClient, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_staged(**settings)


def test_the_cache_is_chosen_by_a_setting_and_two_pools_are_counted(hybrid_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ENGINE_KV_CACHE .*use one of auto, float32, fp8, staged"):
        read_config(["--kv-cache", "int2"], {})
    with pytest.raises(ConfigError, match=r"ENGINE_KV_RECENT_PAGES .*the least is 2"):
        read_config([], {"ENGINE_KV_RECENT_PAGES": "1"})
    config = EngineConfig(model=str(hybrid_path), pages=100, page_tokens=PAGE, prefill_tokens=64, **STAGED)
    backend = load_backend(config)
    model = backend.engine._runner._model
    pools = pools_of(config, model)
    assert pools.staged is not None
    assert (pools.pages, pools.staged.three_bit_pages) == (4 * 6 + 4, 100 - 4 * 5)
    held = sum(pool.pools.nbytes for pool in model._kv_pools())  # type: ignore[attr-defined]  # the draft layer's too
    assert held == pools.nbytes(model, PAGE)
    assert backend.info().context_tokens == (80 + 5) * PAGE
    text = refusal(config, model, pools, 5, pools.nbytes(model, PAGE))
    assert text is not None
    assert "in three bits (80)" in text
    assert "kv staged 1 + 4 pages of 16" in model.precision, "what the fingerprint is made of names the rule"
    backend.close()
