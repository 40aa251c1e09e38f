"""Drafts over a cache in two stages: what is said is what plain decoding over it says, whatever happens on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from inference_grpc.core.request import Request
from inference_grpc.events import Event, Finished, TextDelta
from inference_grpc.model.staged import StagedPool
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import Client, complete, text_of, usage_of

PAGE = 16
STAGED: dict[str, Any] = {
    "kv_cache": "staged",
    "kv_anchor_pages": 1,
    "kv_recent_pages": 4,
    "max_sequences": 4,
    "checkpoint_mib": 1,
    "packed_mib": 0,
    "pages": 100,
}
KINDS: list[dict[str, Any]] = [
    {"logit_bias": {40: 8.0}},  # which says the same again and again
    {"temperature": 1.0, "seed": 3},
    {},
    {"temperature": 0.8, "seed": 8, "logit_bias": {40: 8.0}},
]


@pytest.fixture(scope="module")
def agreeing_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most drafts of its draft layer are right, a few are not."""
    return write_tiny(tmp_path_factory.mktemp("agreeing") / "agreeing", depth=0.08)


@pytest.fixture(params=["mtp", "prompt lookup"])
def make(request: pytest.FixtureRequest, make_client: MakeClient, agreeing_path: Path, tiny_path: Path) -> MakeClient:
    path = agreeing_path if request.param == "mtp" else tiny_path

    def start(**settings: Any) -> Client:
        client = make_client(**({"model": str(path)} | STAGED | settings))
        assert not settings.get("draft_tokens") or client.backend.info().draft_head.startswith(request.param)
        return client

    return start


def texts(client: Client, *requests: Request) -> list[list[str]]:
    return [[text_of(events, choice) for choice in range(2)] for events in client.run(*requests)]


def at_borders(seed: int) -> list[Request]:
    """Prompts that end within a few tokens of a page's end, and outputs that go over two more. The first page
    is demoted when a text comes to its sixth: all are long enough, or become so."""
    chance = Random(seed)
    requests = []
    for number, sampling in enumerate(KINDS):
        tokens = (5 + number % 2) * PAGE + chance.randint(-4, 4)
        prompt = [chance.randrange(7, 200) for _ in range(tokens // 3)] * 3
        output = chance.randint(2 * PAGE - 4, 2 * PAGE)
        requests.append(complete(prompt, max_tokens=output, ignore_eos=True, sampling=sampling, n=1 + (number == 3)))
    return requests


def test_drafts_across_borders_say_what_plain_decoding_says(make: MakeClient) -> None:
    """Alone and all at once, greedy and drawn, with a fork; by a draft at a time and by as many as may be."""
    requests = at_borders(1)
    plain = make()
    expected = [texts(plain, request)[0] for request in requests]
    for draft_tokens in (2, 8):
        client = make(draft_tokens=draft_tokens)
        assert texts(client, *requests) == expected
        info = client.backend.info()
        assert info.drafted_tokens > info.accepted_tokens > 0, "right ones and wrong ones were tried"
        assert client.backend.engine.cache.stale.pool.cached > 0, "pages were demoted"


def test_the_same_in_few_pages_in_small_chunks_and_from_found_pages(make: MakeClient) -> None:
    requests = at_borders(3)
    plain = make()
    expected = [texts(plain, request)[0] for request in requests]
    swapped = make(draft_tokens=3, max_sequences=2, pages=14, swap_mib=2)
    assert texts(swapped, *requests) == expected
    assert swapped.backend.engine.scheduler.swaps > 0
    cut = make(draft_tokens=3, prefill_tokens=17)
    assert texts(cut, *requests) == expected
    for request, choices in zip(requests[:2], expected, strict=False):
        _, again = cut.run(request)[0], cut.run(request)[0]
        assert text_of(again) == choices[0]
        assert usage_of(again).cached_tokens > 0


@pytest.mark.parametrize("max_sequences", [1, 4])
def test_the_start_tries_drafts_where_three_bits_begin(
    make_client: MakeClient,
    tiny_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    max_sequences: int,
) -> None:
    """Steps with drafts that read one page more in FP8 are noticed, however little room there is."""
    attend = StagedPool.attend

    def reads_late(pool: StagedPool, q: torch.Tensor, chunks: Any, first: int) -> torch.Tensor:
        with monkeypatch.context() as patch:
            if any(chunk.drafts for chunk, _ in chunks):
                patch.setattr(pool, "rule", replace(pool.rule, recent=pool.rule.recent + 1))
            return attend(pool, q, chunks, first)

    monkeypatch.setattr(StagedPool, "attend", reads_late)
    settings = STAGED | {"max_sequences": max_sequences, "kv_recent_pages": 6}
    client = make_client(model=str(tiny_path), draft_tokens=3, **settings)
    assert "drafting_off draft_tokens=3: logits of token" in caplog.text
    assert client.backend.info().draft_head == "none"


def test_what_is_aborted_among_them_changes_no_other_text(make: MakeClient) -> None:
    """Each of these is left after so many pieces of text, some of them just where a page ends."""
    requests = at_borders(4)
    expected = [texts(make(), request)[0] for request in requests]
    client = make(draft_tokens=4)
    said: dict[int, int] = {}

    def leave(key: int, event: Event) -> None:
        if key in leaving and isinstance(event, TextDelta):
            said[key] = said.get(key, 0) + 1
            if said[key] == leaving[key]:
                client.backend.cancel(key)

    # By key: known before they are submitted, since `leave` runs on the engine's thread.
    leaving = {2 * number + 2: 1 + 3 * number for number in range(len(requests))}
    client.on_event = leave
    keys = []
    for request in requests:
        keys.append(client.submit(request))
        client.submit(complete([*request.prompt[:70], 9, 9], max_tokens=200, ignore_eos=True))
    assert [[text_of(client.wait(key), choice) for choice in range(2)] for key in keys] == expected
    for key in leaving:
        last = client.wait(key)[-1]
        assert isinstance(last, Finished)
        assert last.cancelled
