"""The engine's fingerprint: equal on every replica and after a restart, another when a seed may mean other tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference_grpc.core.backend import BackendInfo
from inference_grpc.events import Started
from inference_grpc.server.fingerprint import fingerprint_of
from tests.inference_grpc.rig import Rig

INFO = BackendInfo(
    model="m",
    context_tokens=100,
    max_sequences=4,
    precision="fp8",
    device="cuda",
    weights_sha256="ab",
    runtime="torch 2",
)


@pytest.mark.parametrize(
    "change",
    [{"model": "n"}, {"precision": "bf16"}, {"weights_sha256": "cd"}, {"device": "cpu"}, {"draft_head": "mtp"},
     {"runtime": "torch 3"}],
    ids=str,
)  # fmt: skip
def test_what_decides_about_tokens_changes_it(change: dict[str, str]) -> None:
    assert fingerprint_of("1", replace(INFO, **change)) != fingerprint_of("1", INFO)
    assert fingerprint_of("2", INFO) != fingerprint_of("1", INFO)


def test_load_and_size_do_not_change_it() -> None:
    busy = replace(INFO, running=3, waiting=9, steps=100, pages_total=5, max_sequences=8, context_tokens=50)
    assert fingerprint_of("1", busy) == fingerprint_of("1", INFO)
    assert fingerprint_of("1", INFO).startswith("fp_")


async def test_every_stream_of_a_session_has_that_of_the_info(rig: Rig) -> None:
    info = await rig.client.get_info()
    assert info.fingerprint.startswith("fp_")
    (started,) = [event for event in await rig.run("SAY: hi") if isinstance(event, Started)]
    assert started.fingerprint == info.fingerprint
