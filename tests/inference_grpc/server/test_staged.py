"""A cache in two stages as an operator sees it: the pages of either kind, in the log, in GetInfo and in the samples."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from api.deployment_status import _figures, _status
from inference_grpc.core.request import SamplingParams
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.rig import Start, text_of


async def test_both_kinds_of_pages_are_told(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = str(write_tiny(tmp_path / "tiny", "llama"))
    engine: dict[str, Any] = {"kind": "torch", "model": model, "packed_mib": 0, "max_sequences": 2, "pages": 50}
    rule = {"kv_cache": "staged", "kv_anchor_pages": 1, "kv_recent_pages": 4}
    with caplog.at_level(logging.INFO):
        rig = await start(**engine, **rule, prefill_tokens=64)
    fp8, three_bit = 2 * (1 + 4 + 1) + 64 // 16, 50 - 2 * (1 + 4)
    assert f"pages={fp8} three_bit_pages={three_bit} " in caplog.text
    asked: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "sampling": SamplingParams(temperature=0.0)}
    assert text_of(await rig.run("hello " * 70, **asked))
    info = await rig.client.get_info()
    assert (info.pages_total, info.pages_free) == (fp8, fp8), "what is kept for a later prefix can be taken"
    assert (info.three_bit_pages_total, info.three_bit_pages_free) == (three_bit, three_bit)
    figures, facts = _figures(info), _status(info).facts
    assert (figures.pages_total, figures.three_bit_pages_total, figures.three_bit_pages_used) == (fp8, three_bit, 0)
    assert (facts["three_bit_pages_total"], facts["three_bit_pages_used"]) == (three_bit, 0)


async def test_a_cache_in_one_stage_has_no_three_bit_pages(start: Start) -> None:
    info = await (await start()).client.get_info()
    assert info.pages_total > 0
    assert (info.three_bit_pages_total, info.three_bit_pages_free) == (0, 0)
