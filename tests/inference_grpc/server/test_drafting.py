"""Drafting as a gateway and an operator see it: the same stream and receipt, and how many drafts were right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.deployment_status import _status
from inference_grpc.core.request import SamplingParams
from inference_grpc.model.tiny import write_tiny
from portal.operator.engine_facts import told
from tests.inference_grpc.rig import Start, text_of


async def test_streams_and_receipts_are_the_same_and_the_share_of_right_drafts_is_told(
    start: Start, tmp_path: Path
) -> None:
    model = str(write_tiny(tmp_path / "agreeing", depth=0.05))
    asked: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "sampling": SamplingParams(temperature=0.0)}
    engine = {"kind": "torch", "model": model, "packed_mib": 0, "checkpoint_mib": 1, "pages": 64}
    plain = await start(**engine, journal_dir=tmp_path / "plain")
    drafting = await start(**engine, journal_dir=tmp_path / "drafting", draft_tokens=2)
    texts, usages, facts = [], [], []
    for rig in (plain, drafting):
        texts.append(text_of(await rig.run("hello", **asked)))
        (receipt,) = await rig.receipts(1)
        usages.append(receipt.usage)
        info = await rig.client.get_info()
        facts.append(dict(told(_status(info).facts))["Draft head"])
    assert texts[0] == texts[1] != ""
    assert usages[0] == usages[1]
    assert usages[0].completion_tokens == 40
    assert facts[0] == "none"
    assert (sum(info.drafted_per_position), sum(info.accepted_per_position)) == (
        info.drafted_tokens,
        info.accepted_tokens,
    )
    assert info.completion_tokens == 40
    assert info.drafted_tokens >= info.accepted_tokens > 0
    share = f"{100 * info.accepted_tokens / info.drafted_tokens:.1f} %"
    assert facts[1].startswith(f"mtp, 2 tokens; {share} of {info.drafted_tokens} drafts accepted, by position ")
