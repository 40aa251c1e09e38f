"""The engine around the GPU's model, whose plain way stands in for the device: steps ahead, telling beside, errors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.core.batch import Chunk
from inference_grpc.engine import load as engine_load
from inference_grpc.engine import load_backend
from inference_grpc.model.cuda import load as cuda_load
from inference_grpc.model.cuda.load import load_cuda_hybrid
from inference_grpc.model.cuda.model import CudaHybridModel
from inference_grpc.model.load import Loaded
from kernels.paths import Choice
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import Client, complete, text_of

ENDLESS: dict[str, Any] = {"ignore_eos": True}


class PlainSteps:
    """In the place of `DecodeSteps`: the same face, the plain way behind it."""

    def __init__(self, model: CudaHybridModel) -> None:
        assert model._ragged is not None
        self._ragged = model._ragged
        self.asked = self.ahead_of = 0

    def __call__(self, chunks: list[Chunk]) -> torch.Tensor:
        self.asked += len(chunks)
        return torch.cat([self._ragged([chunk]) for chunk in chunks])

    def ahead(self, chunks: list[Chunk], token_ids: torch.Tensor) -> torch.Tensor:
        self.ahead_of += len(chunks)
        rows = []
        for chunk, token in zip(chunks, token_ids.tolist(), strict=True):
            sequence = copy.copy(chunk.sequence)
            sequence.token_ids = [*sequence.token_ids, token]
            rows.append(self._ragged([Chunk(sequence, chunk.end, 1)]))
        return torch.cat(rows)


@pytest.fixture
def make_gpu(make_client: MakeClient, hybrid_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeClient:
    def on_cpu(opened: Any, *, invariant: bool, **rest: Any) -> Loaded:
        where: dict[str, Any] = {"device": torch.device("cpu"), "passed": lambda gate: False}
        return Loaded(*load_cuda_hybrid(opened.checkpoint, opened.config, **rest, **where))

    def with_steps(model: Any, sequences: int) -> None:
        model._steps = PlainSteps(model)

    monkeypatch.setattr(engine_load, "load_on_gpu", on_cpu)
    monkeypatch.setattr(engine_load, "find_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(engine_load, "free_bytes", lambda device: 1 << 40)
    monkeypatch.setattr(CudaHybridModel, "warm_up", with_steps)

    def make(**settings: Any) -> Client:
        return make_client(**({"model": str(hybrid_path), "checkpoint_mib": 1, "device": "cuda"} | settings))

    return make


def steps_of(client: Client) -> PlainSteps:
    return client.backend.engine._runner._model._steps


def test_steps_that_run_ahead_say_what_steps_that_wait_say(
    make_gpu: MakeClient, make_client: MakeClient, hybrid_path: Path
) -> None:
    requests = [complete(f"{n} the " + "hello " * (6 * n), max_tokens=6 + 3 * n, **ENDLESS) for n in range(6)]
    cpu = make_client(model=str(hybrid_path), checkpoint_mib=1)
    expected = [text_of(events) for events in cpu.run(*requests)]
    gpu = make_gpu()
    assert [text_of(events) for events in gpu.run(*requests)] == expected
    steps = steps_of(gpu)
    # Ends, beginnings and new pages break the row; most steps were computed before they were asked for.
    assert steps.ahead_of > steps.asked > 0
    assert [text_of(gpu.run(request)[0]) for request in requests] == expected


def test_no_step_runs_ahead_where_sequences_may_lose_their_memory(make_gpu: MakeClient) -> None:
    requests = [complete(f"{n} the " + "hello " * (6 * n), max_tokens=30, **ENDLESS) for n in range(8)]
    expected = [text_of(make_gpu().run(request)[0]) for request in requests]
    crowded = make_gpu(pages=40, swap_mib=2)
    assert [text_of(events) for events in crowded.run(*requests)] == expected
    assert crowded.backend.engine.scheduler.preemptions > 0


STAGED: dict[str, Any] = {
    "kv_cache": "staged",
    "kv_anchor_pages": 1,
    "kv_recent_pages": 4,
    "max_sequences": 3,
    "pages": 60,
}


def test_a_cache_in_two_stages_is_one_of_fp8_where_it_is_not_proved(make_gpu: MakeClient) -> None:
    client = make_gpu(**STAGED)
    model = client.backend.engine._runner._model
    assert model.staging is None
    assert "kv fp8" in client.backend.info().precision
    assert (client.backend.info().pages_total, client.backend.info().three_bit_pages_total) == (60, 0)
    assert any("[staged] -> FP8 pages alone" in line for line in model.ways.lines)
    request = complete("hello " * 20, max_tokens=8, **ENDLESS)
    assert text_of(client.run(request)[0]) == text_of(make_gpu(kv_cache="fp8").run(request)[0])


def test_over_two_stages_a_text_is_one_alone_together_ahead_and_after_preemption(
    make_gpu: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_load, "choose", lambda *arguments, **named: Choice(frozenset({"staged"}), ()))
    requests = [complete(f"{n} the " + "hello " * (20 + 9 * n), max_tokens=24, **ENDLESS) for n in range(3)]
    client = make_gpu(**STAGED)
    assert client.backend.info().three_bit_pages_total > 0
    alone = [text_of(client.run(request)[0]) for request in requests]
    assert client.backend.engine.cache.stale.pool.cached > 0
    assert [text_of(events) for events in client.run(*requests)] == alone  # prompts are found, in both stages
    assert steps_of(client).ahead_of > 0
    crowded = make_gpu(**STAGED | {"pages": 21, "prefill_tokens": 70, "swap_mib": 2})
    assert [text_of(events) for events in crowded.run(*requests)] == alone
    assert crowded.backend.engine.scheduler.swaps > 0


def test_sampled_and_penalised_texts_run_ahead_too(make_gpu: MakeClient) -> None:
    requests = [
        complete("hello " * 20, max_tokens=20, sampling={"seed": 5, "temperature": 0.8, "top_p": 0.9}, **ENDLESS),
        complete("the hello", max_tokens=20, sampling={"repetition_penalty": 1.3}, **ENDLESS),
        complete("in on", max_tokens=20, sampling={"logit_bias": {40: 2.0}}, **ENDLESS),
    ]
    client = make_gpu()
    alone = [text_of(client.run(request)[0]) for request in requests]
    assert [text_of(events) for events in make_gpu().run(*requests)] == alone
    assert steps_of(client).ahead_of > 0


def test_a_machine_without_a_gpu_says_what_to_do(hybrid_path: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=r"ENGINE_DEVICE \(--device\) is 'cuda': .*use --device cpu\."):
        load_backend(EngineConfig(model=str(hybrid_path), device="cuda", journal_dir=tmp_path))


def test_device_and_invariance_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"ENGINE_DEVICE \(--device\) is 'tpu': use one of cpu, cuda\."):
        read_config(["--device", "tpu"], {})
    with pytest.raises(ConfigError, match="use 0 or 1"):
        read_config([], {"ENGINE_BATCH_INVARIANT": "2"})
