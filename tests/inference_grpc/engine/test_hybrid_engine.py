"""The hybrid through the whole engine: one text per request, whatever runs beside it, is found, evicted or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.engine.soak import Soak
from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.engine import load_backend
from inference_grpc.events import Failed
from inference_grpc.model.memory import StatePool
from inference_grpc.model.safetensors import write_folder
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import Client, chat, complete, text_of, usage_of

ENDLESS: dict[str, Any] = {"ignore_eos": True}
LONG = "tell the tale of the hero " * 12


@pytest.fixture
def make_hybrid(make_client: MakeClient, hybrid_path: Path) -> MakeClient:
    def make(**settings: Any) -> Client:
        return make_client(**({"model": str(hybrid_path), "checkpoint_mib": 1} | settings))

    return make


def model_of(client: Client) -> Any:
    return client.backend.engine._runner._model


def test_the_same_text_alone_in_a_batch_in_small_chunks_and_after_preemption(make_hybrid: MakeClient) -> None:
    requests = [complete(f"{n} the " + "hello " * (6 * n), max_tokens=30, **ENDLESS) for n in range(8)]
    client = make_hybrid()
    alone = [text_of(client.run(request)[0]) for request in requests]
    assert len(set(alone)) > 4
    assert [text_of(events) for events in make_hybrid(pages=128).run(*requests)] == alone
    chunked = make_hybrid(prefill_tokens=17, page_tokens=8, pages=256)
    assert [text_of(events) for events in chunked.run(*requests)] == alone
    crowded = make_hybrid(pages=40)
    assert [text_of(events) for events in crowded.run(*requests)] == alone
    assert crowded.backend.engine.scheduler.preemptions > crowded.backend.engine.scheduler.swaps == 0


@pytest.mark.parametrize("precision", ["auto", "fp8"])
def test_what_went_to_host_memory_comes_back_as_it_was(make_hybrid: MakeClient, precision: str) -> None:
    requests = [complete(f"{n} the " + "hello " * (6 * n), max_tokens=30, **ENDLESS) for n in range(8)]
    alone = [text_of(make_hybrid(precision=precision).run(request)[0]) for request in requests]
    swapping = make_hybrid(precision=precision, pages=40, swap_mib=2)
    assert [text_of(events) for events in swapping.run(*requests)] == alone
    assert swapping.backend.engine.scheduler.swaps > 0


def test_a_state_that_gave_way_is_found_in_host_memory(make_hybrid: MakeClient) -> None:
    # Slots for one running sequence and one kept state: each prompt pushes the state of the one before it out.
    client = make_hybrid(max_sequences=1, checkpoint_mib=0, pages=200, swap_mib=2)
    prompts = [f"{n} " + LONG for n in range(4)]
    cold = [client.run(complete(prompt, max_tokens=8, **ENDLESS))[0] for prompt in prompts]
    assert client.backend.engine.cache.host.spilled > 0
    warm = [client.run(complete(prompt, max_tokens=8, **ENDLESS))[0] for prompt in prompts]
    assert [text_of(events) for events in warm] == [text_of(events) for events in cold]
    assert all(usage_of(events).cached_tokens >= 64 for events in warm)


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4"])
def test_every_precision_says_the_same_alone_and_in_company(make_hybrid: MakeClient, precision: str) -> None:
    requests = [complete(f"{n} " + "hello " * (9 * n), max_tokens=12, **ENDLESS) for n in range(5)]
    client = make_hybrid(precision=precision)
    alone = [text_of(client.run(request)[0]) for request in requests]
    again = make_hybrid(precision=precision, prefill_tokens=64)
    assert [text_of(events) for events in again.run(*requests)] == alone
    assert precision in client.backend.info().precision


def test_a_prompt_met_before_is_cached_for_its_tenant_and_says_the_same(make_hybrid: MakeClient) -> None:
    client = make_hybrid()
    cold, warm = (client.run(complete(LONG, max_tokens=12, tenant="ada", **ENDLESS))[0] for _ in range(2))
    (other,) = client.run(complete(LONG, max_tokens=12, tenant="ben", **ENDLESS))
    tokens = usage_of(cold).prompt_tokens
    assert [usage_of(events).cached_tokens for events in (cold, warm, other)] == [0, (tokens - 1) // 64 * 64, 0]
    assert text_of(cold) == text_of(warm) == text_of(other)


def test_a_conversation_goes_on_from_the_end_of_its_last_prompt(make_hybrid: MakeClient) -> None:
    client, fresh = make_hybrid(), make_hybrid()
    client.run(complete(LONG, max_tokens=20, **ENDLESS))
    longer = complete(LONG + "and then the hero said", max_tokens=20, **ENDLESS)
    (warm,), (cold,) = client.run(longer), fresh.run(longer)
    assert usage_of(warm).cached_tokens >= 128
    assert text_of(warm) == text_of(cold)


def test_choices_start_from_one_prompt_and_equal_their_lone_selves(make_hybrid: MakeClient) -> None:
    request: dict[str, Any] = {"max_tokens": 15, "sampling": {"temperature": 1.2, "seed": 5}, **ENDLESS}
    client = make_hybrid()
    (events,) = client.run(complete(LONG, n=4, **request))
    texts = [text_of(events, choice) for choice in range(4)]
    assert len(set(texts)) == 4
    # With room for one at a time they cannot be forked: each finds the prompt by its prefix instead.
    (narrow,) = make_hybrid(max_sequences=1).run(complete(LONG, n=4, **request))
    assert [text_of(narrow, choice) for choice in range(4)] == texts
    assert text_of(client.run(complete(LONG, **request))[0]) == texts[0]


def test_what_a_slot_held_before_does_not_show(make_hybrid: MakeClient) -> None:
    client = make_hybrid(max_sequences=2)
    request = complete("the", max_tokens=12, **ENDLESS)  # a first chunk of one token looks like decoding
    expected = text_of(client.run(request)[0])
    for pool in model_of(client)._pools:
        if isinstance(pool, StatePool):
            pool.state.fill_(float("nan"))
            pool.conv.fill_(float("nan"))
    assert [text_of(events) for events in client.run(request, request)] == [expected, expected]


def test_values_that_are_not_finite_poison_no_state(make_hybrid: MakeClient) -> None:
    client = make_hybrid(max_sequences=3)
    expected = text_of(client.run(complete(LONG, max_tokens=8, **ENDLESS))[0])
    embedding = model_of(client)._weights.embedding
    sound = embedding[99].clone()
    embedding[99] = float("nan")
    (bad,) = client.run(complete([99] * 150, max_tokens=8))
    embedding[99] = sound
    assert isinstance(bad[-1], Failed)
    assert client.backend.engine.cache.slots.kept == 0
    (again,) = client.run(complete([99] * 150, max_tokens=8, **ENDLESS))
    assert not isinstance(again[-1], Failed)
    for tenant in ("ada", "ben", "cyd"):
        assert text_of(client.run(complete(LONG, max_tokens=8, tenant=tenant, **ENDLESS))[0]) == expected


def test_padding_rows_of_the_head_never_become_tokens(make_hybrid: MakeClient) -> None:
    client = make_hybrid()
    model = model_of(client)
    assert model.config.vocabulary == 320
    assert model.vocabulary == client.backend._preparer._tokenizer.vocabulary == 271


def test_chats_open_and_close_their_thoughts(make_hybrid: MakeClient) -> None:
    client = make_hybrid()
    assert "reasoning" in client.backend.info().features
    (events,) = client.run(chat("hello", max_tokens=5, **ENDLESS))
    assert usage_of(events).completion_tokens == 5


def test_a_short_soak_loses_nothing() -> None:
    outcome = Soak("tiny-random:qwen3_5", longest=300, seed=7).run(60)
    assert outcome.finished + outcome.cancelled + sum(outcome.failed.values()) == 60
    assert outcome.differing == 0
    assert outcome.failed.keys() <= {"deadline_exceeded"}


def test_the_command_line_names_a_tiny_model() -> None:
    assert read_config(["--tiny-random", "qwen3_5"], {}).model == "tiny-random:qwen3_5"
    with pytest.raises(ConfigError, match="leave --model out"):
        read_config(["--tiny-random", "qwen3_5", "--model", "x"], {})
    with pytest.raises(ConfigError, match="no tiny model of the family 'gpt9'"):
        load_backend(EngineConfig(model="tiny-random:gpt9"))


def test_the_precision_is_checked_at_start(hybrid_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither one of auto, bf16, fp8, nvfp4 nor"):
        load_backend(EngineConfig(model=str(hybrid_path), precision="int3"))


def test_states_stay_float32_and_keys_follow_the_recipe(make_hybrid: MakeClient) -> None:
    model = model_of(make_hybrid(precision="fp8"))
    pools = [pool for pool in model._pools if isinstance(pool, StatePool)]
    assert {pool.state.dtype for pool in pools} == {torch.float32}
    assert model.page_token_bytes * 4 == model_of(make_hybrid()).page_token_bytes


def test_keys_and_values_beyond_fp8_are_counted(make_client: MakeClient, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "loud")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.self_attn.v_proj.weight"] *= 1000
    write_folder(folder, tensors.items())
    client = make_client(model=str(folder), precision="fp8", checkpoint_mib=1)
    before = client.backend.info().saturated["keys_values"]
    client.run(complete("hello", max_tokens=3, **ENDLESS))
    assert client.backend.info().saturated["keys_values"] > before
    quiet = make_client(model=str(folder), checkpoint_mib=1)  # keys and values are float32
    before = quiet.backend.info().saturated["keys_values"]
    quiet.run(complete("hello", max_tokens=3, **ENDLESS))
    assert quiet.backend.info().saturated["keys_values"] == before
