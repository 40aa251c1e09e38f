"""Drafts change how many steps an answer takes, and nothing else: who drafts well, badly or within a grammar."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine.soak import DEPTH, NARROW, Soak
from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import Constraint, Request, SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine import load_backend
from inference_grpc.engine.drafting import PromptLookup
from inference_grpc.events import ChoiceFinished, Event, Failed, TextDelta
from inference_grpc.model.hybrid import HybridModel
from inference_grpc.model.llama import LlamaModel
from inference_grpc.model.tiny import write_tiny
from inference_grpc.server.metrics import EngineMetrics
from inference_grpc.tools.export_gguf import export_gguf
from inference_grpc.tools.progress import Progress
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import Client, complete, text_of, usage_of

ENDLESS: dict[str, Any] = {"ignore_eos": True}
PERSON = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, '
    '"tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"]}'
)


@pytest.fixture(scope="module")
def agreeing_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of four of its drafts are right."""
    return write_tiny(tmp_path_factory.mktemp("agreeing") / "agreeing", depth=0.08)


@pytest.fixture
def paths(agreeing_path: Path, hybrid_path: Path, tiny_path: Path) -> dict[str, Path]:
    return {"agreeing": agreeing_path, "random": hybrid_path, "dense": tiny_path}


@pytest.fixture
def make(make_client: MakeClient, agreeing_path: Path) -> MakeClient:
    def start(**settings: Any) -> Client:
        return make_client(**({"model": str(agreeing_path), "checkpoint_mib": 1, "pages": 128} | settings))

    return start


def told(events: list[Event]) -> dict[str, Any]:
    """All that a caller sees but how it was cut into deltas."""
    texts = [event for event in events if isinstance(event, TextDelta)]
    return {
        "texts": [text_of(events, choice) for choice in range(4)],
        "logprobs": [
            [token for event in texts if event.choice == n for token in event.logprobs or []] for n in range(4)
        ],
        "ends": {event.choice: event for event in events if isinstance(event, ChoiceFinished)},
        "usage": usage_of(events),
    }


def all_kinds() -> list[Request]:
    hot = {"temperature": 1.0, "seed": 3}
    return [
        complete("the hello", max_tokens=40, **ENDLESS),
        complete("the " * 70, max_tokens=17, logprobs=True, top_logprobs=3, **ENDLESS),
        complete("hello " * 11, max_tokens=40, sampling=hot, **ENDLESS),
        complete("in on he", max_tokens=30, sampling={**hot, "top_p": 0.9, "top_k": 20}, logprobs=True, **ENDLESS),
        complete("tell", max_tokens=30, sampling={"repetition_penalty": 1.2, "frequency_penalty": 0.4}, **ENDLESS),
        complete("a", max_tokens=25, sampling={"logit_bias": {40: 3.0}, "presence_penalty": 1.0}, **ENDLESS),
        complete("ends by itself", max_tokens=60),
        complete("hello the", max_tokens=60, stop=["e", "xyz"]),
        complete("one", max_tokens=1, **ENDLESS),
        complete("two", max_tokens=2, **ENDLESS),
        complete("n " * 40, max_tokens=12, n=3, sampling={"temperature": 1.3, "seed": 9}, logprobs=True, **ENDLESS),
    ]  # fmt: skip


@pytest.mark.parametrize("which", ["agreeing", "random", "dense"])
def test_everything_is_told_as_plain_decoding_tells_it(make: MakeClient, paths: dict[str, Path], which: str) -> None:
    model = str(paths[which])
    plain = make(model=model)
    expected = [told(plain.run(request)[0]) for request in all_kinds()]
    for draft_tokens in (1, 2, 3, 4):
        client = make(model=model, draft_tokens=draft_tokens)
        assert [told(events) for events in client.run(*all_kinds())] == expected
        info = client.backend.info()
        assert info.drafted_tokens > 0
        assert len(info.drafted_per_position) <= draft_tokens
        assert info.completion_tokens == plain.backend.info().completion_tokens
        if which == "agreeing":
            assert info.accepted_tokens > info.drafted_tokens * 0.3
            assert len(info.accepted_per_position) == draft_tokens


def test_right_drafts_save_steps(make: MakeClient) -> None:
    request = complete("hello", max_tokens=60, **ENDLESS)
    steps = []
    for draft_tokens in (0, 1, 3):
        client = make(draft_tokens=draft_tokens)
        client.run(request)
        info = client.backend.info()
        steps.append(info.steps)
        # A step draws a token, and one more for each draft that was right: all but a draft of what ended the text.
        assert info.completion_tokens == info.steps + info.accepted_tokens
    assert steps[0] == 60
    assert steps[0] > steps[1] > steps[2]


def test_the_same_in_small_chunks_in_few_pages_and_where_the_output_is_reserved(make: MakeClient) -> None:
    requests = [
        complete(f"{n} the " + "hello " * (2 * n), max_tokens=70, sampling={"temperature": n % 2, "seed": n}, **ENDLESS)
        for n in range(8)
    ]
    plain = make()
    alone = [text_of(plain.run(request)[0]) for request in requests]
    kinds: list[dict[str, Any]] = [
        {"prefill_tokens": 17, "page_tokens": 8, "pages": 256},
        {"pages": 14},
        {"pages": 14, "swap_mib": 2},
        {"pages": 30, "admission": "whole"},
        {"max_sequences": 3, "checkpoint_mib": 0},
    ]
    for settings in kinds:
        client = make(draft_tokens=3, **settings)
        assert [text_of(events) for events in client.run(*requests)] == alone, settings
        scheduler = client.backend.engine.scheduler
        assert client.backend.info().accepted_tokens > 0
        assert (scheduler.preemptions > 0) == (settings.get("pages") == 14)
        assert (scheduler.swaps > 0) == ("swap_mib" in settings)


def test_a_prompt_met_before_is_found_and_drafted_on_as_well(make: MakeClient) -> None:
    client = make(draft_tokens=3)
    request = complete("tell the tale of the hero " * 8, max_tokens=24, **ENDLESS)
    accepted = []
    for cached in (0, 128, 128):
        before = client.backend.info().accepted_tokens
        (events,) = client.run(request)
        assert usage_of(events).cached_tokens == cached
        accepted.append(client.backend.info().accepted_tokens - before)
    assert accepted[0] == accepted[1] == accepted[2] > 0


@pytest.mark.parametrize("which", ["agreeing", "dense"])
def test_constraints_hold_and_say_what_they_say_without_drafts(
    make: MakeClient, paths: dict[str, Path], which: str
) -> None:
    requests = [
        complete("x", max_tokens=60, constraint=Constraint("regex", "(yes|no) [0-9]{3}( maybe){4}")),
        complete("y", max_tokens=48, constraint=Constraint("json_schema", PERSON)),  # closed for want of tokens
        complete("z", max_tokens=90, sampling={"temperature": 1.0, "seed": 4},
                 constraint=Constraint("json_schema", PERSON)),
        complete("w", max_tokens=50, sampling={"temperature": 0.7, "seed": 5}, constraint=Constraint("json_object")),
    ]  # fmt: skip
    model = str(paths[which])
    expected = [told(events) for events in make(model=model).run(*requests)]
    client = make(model=model, draft_tokens=4)
    assert [told(events) for events in client.run(*requests)] == expected
    if which == "agreeing":
        assert client.backend.info().accepted_tokens > 0


def test_only_what_a_grammar_allows_is_drafted(make: MakeClient) -> None:
    """Where it leaves one way, the draft is right, whatever the draft layer thinks."""
    client = make(draft_tokens=3)
    (events,) = client.run(complete("x", max_tokens=80, constraint=Constraint("regex", "the hello in on the hello")))
    info = client.backend.info()
    assert text_of(events) == "the hello in on the hello"
    # The end of the text stands where the grammar left no other draft, and is drawn as it was drafted.
    assert info.accepted_tokens == info.drafted_tokens > 0


def test_cancel_and_failures_give_every_slot_back(make: MakeClient) -> None:
    client = make(draft_tokens=4, max_sequences=3)
    keys = [client.submit(complete(f"{n} the", n=2, **ENDLESS)) for n in range(4)]
    client.wait(keys[0], until=lambda events: len(events) > 6)
    for key in keys:
        client.backend.cancel(key)
    for key in keys:
        client.wait(key)
    model = client.backend.engine._runner._model
    sound = model._weights.embedding[99].clone()
    model._weights.embedding[99] = float("nan")
    (bad,) = client.run(complete([99] * 20, max_tokens=8))
    model._weights.embedding[99] = sound
    assert isinstance(bad[-1], Failed)
    assert client.backend.engine.cache.slots.held == 0


def test_logits_of_the_draft_layer_that_are_not_finite_cost_nothing_but_drafts(make: MakeClient) -> None:
    request = complete("hello", max_tokens=20, **ENDLESS)
    expected = told(make().run(request)[0])
    client = make(draft_tokens=3)
    client.backend.engine._runner._model._weights.mtp.norm.fill_(float("nan"))
    assert told(client.run(request)[0]) == expected
    assert client.backend.info().drafted_tokens == 0


def test_a_gguf_file_brings_its_draft_layer_along(make: MakeClient, agreeing_path: Path, tmp_path: Path) -> None:
    request = complete("hello the tale", max_tokens=40, **ENDLESS)
    export_gguf(agreeing_path, tmp_path / "model.gguf", Progress())
    client, folder = make(model=str(tmp_path / "model.gguf"), draft_tokens=3), make(draft_tokens=3)
    assert text_of(client.run(request)[0]) == text_of(folder.run(request)[0])
    assert client.backend.info().draft_head == "mtp, 3 tokens"
    assert client.backend.info().accepted_per_position == folder.backend.info().accepted_per_position


def test_a_hybrid_without_a_draft_layer_looks_its_drafts_up(make: MakeClient, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "headless", mtp_num_hidden_layers=0)
    request = complete("hello", max_tokens=40, sampling={"logit_bias": {40: 5.0}}, **ENDLESS)  # often the same
    expected = told(make(model=str(path)).run(request)[0])
    client = make(model=str(path), draft_tokens=2)
    assert told(client.run(request)[0]) == expected
    assert client.backend.info().draft_head == "prompt lookup, 2 tokens"
    assert client.backend.info().accepted_tokens > 0


def test_the_start_says_that_drafts_are_checked_and_why(make: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client = make(draft_tokens=3)
    assert "drafting_on drafter=mtp draft_tokens=3: logits of verified drafts have the bits" in caplog.text
    assert client.backend.info().draft_head == "mtp, 3 tokens"
    caplog.clear()
    assert make().backend.info().draft_head == "none"
    assert "drafting" not in caplog.text


@pytest.mark.parametrize("which", ["agreeing", "dense"])
def test_nothing_is_drafted_where_checking_drafts_changes_logits(
    make: MakeClient,
    paths: dict[str, Path],
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    request, model = complete("hello", max_tokens=20, **ENDLESS), str(paths[which])
    expected = told(make(model=model).run(request)[0])
    kind = HybridModel if which == "agreeing" else LlamaModel
    forward = kind.forward

    def off_by_a_bit(self: Any, batch: Batch) -> torch.Tensor:
        logits = forward(self, batch).clone()
        if any(chunk.drafts for chunk in batch.chunks):
            logits[-1, 5] = torch.nextafter(logits[-1, 5], torch.tensor(9.0))
        return logits

    monkeypatch.setattr(kind, "forward", off_by_a_bit)
    client = make(model=model, draft_tokens=3)
    assert "drafting_off draft_tokens=3: logits of token" in caplog.text
    assert client.backend.info().draft_head == "none"
    assert told(client.run(request)[0]) == expected
    assert client.backend.info().drafted_tokens == 0


def test_the_gate_notices_a_state_that_is_not_rolled_back(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from inference_grpc.cache.coordinator import CacheCoordinator

    monkeypatch.setattr(
        CacheCoordinator, "accept", lambda self, sequence, count: self.commit(sequence, sequence.computed + count)
    )
    make(draft_tokens=2)
    assert "drafting_off" in caplog.text


def test_too_little_room_to_try_it_leaves_it_off(make: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    client = make(draft_tokens=2, pages=4)
    assert "4 pages of 16 tokens are too few to try it" in caplog.text
    assert client.backend.info().draft_head == "none"
    assert text_of(client.run(complete("hello", max_tokens=5, **ENDLESS))[0])


def test_the_setting_is_checked() -> None:
    assert read_config(["--draft-tokens", "3"], {}).draft_tokens == 3
    with pytest.raises(ConfigError, match=r"ENGINE_DRAFT_TOKENS \(--draft-tokens\) is '9': at most 8"):
        read_config([], {"ENGINE_DRAFT_TOKENS": "9"})


def test_metrics_count_drafts_by_position(make: MakeClient) -> None:
    client = make(draft_tokens=3)
    client.run(complete("hello", max_tokens=60, **ENDLESS))
    info = client.backend.info()
    found = {
        (sample.name, sample.labels.get("position")): sample.value
        for metric in EngineMetrics(lambda: info).collect()
        for sample in metric.samples
        if sample.name.startswith("engine_spec_decode")
    }
    name = "engine_spec_decode_num_"
    assert found[f"{name}drafts_total", None] == info.drafted_per_position[0]
    assert found[f"{name}draft_tokens_total", None] == sum(info.drafted_per_position) == info.drafted_tokens
    assert found[f"{name}accepted_tokens_total", None] == sum(info.accepted_per_position) == info.accepted_tokens
    for position, (drafted, accepted) in enumerate(
        zip(info.drafted_per_position, info.accepted_per_position, strict=True)
    ):
        assert found[f"{name}draft_tokens_per_pos_total", str(position)] == drafted
        assert found[f"{name}accepted_tokens_per_pos_total", str(position)] == accepted
        assert 0 < accepted <= drafted


def test_lookup_drafts_what_followed_the_same_words_last() -> None:
    lookup = PromptLookup()
    sequence = Sequence(
        key=0, choice=0, prompt_ids=[1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 8, 1, 2], sampling=SamplingParams(), seed=0,
        max_tokens=20,
    )  # fmt: skip

    def drafts(room: int) -> tuple[int, ...]:
        chunk = Chunk(sequence, len(sequence.token_ids) - 1, 1, room=room)
        lookup.draft(Batch([chunk]))
        return chunk.drafts

    assert drafts(3) == ()  # (8, 1, 2) stood there once only
    sequence.append(3)
    assert (drafts(0), drafts(2), drafts(4)) == ((), (5, 6), (5, 6, 7, 8))
    sequence.append(5)
    assert drafts(3) == (6, 7, 8)
    sequence.append(2)
    assert drafts(3) == ()


@pytest.mark.parametrize(("kv_cache", "longest", "requests"), [("auto", 300, 60), ("staged", 150, 25)])
def test_a_short_soak_with_drafts_loses_nothing(tmp_path: Path, kv_cache: str, longest: int, requests: int) -> None:
    model = str(write_tiny(tmp_path / "narrow", depth=DEPTH, **NARROW))
    outcome = Soak(model, longest=longest, seed=7, draft_tokens=3, kv_cache=kv_cache).run(requests)
    assert outcome.finished + outcome.cancelled + sum(outcome.failed.values()) == requests
    assert (outcome.most_three_bit > 0) == (kv_cache == "staged")
    assert outcome.differing == 0
    assert outcome.accepted > 0
    assert outcome.failed.keys() <= {"deadline_exceeded"}


def test_a_device_that_checks_no_drafts_refuses_them(monkeypatch: pytest.MonkeyPatch, hybrid_path: Path) -> None:
    monkeypatch.setattr(HybridModel, "verifies_drafts", False)
    with pytest.raises(
        ConfigError, match=r"ENGINE_DRAFT_TOKENS \(--draft-tokens\) is 2: steps on cpu verify no drafts"
    ):
        load_backend(EngineConfig(model=str(hybrid_path), draft_tokens=2))
