"""What the capacity command says, by the allocator that serves."""

from __future__ import annotations

import pytest

from inference_grpc.tools.__main__ import main
from inference_grpc.tools.capacity import costs_of, fill
from kernels.paged_attention.stage import Staging

GIB = 2**30


def test_bytes_are_those_of_the_27b_model() -> None:
    costs = costs_of("staged", Staging())
    assert (costs.page_token_bytes, costs.three_bit_token_bytes) == (32768, 12544)
    assert costs_of("float32", None).page_token_bytes == 65536  # bfloat16 on a GPU
    assert costs.state_bytes == 48 * (48 * 128 * 128 * 4 + 8 * 10240 * 2)


def test_a_context_of_32k_takes_less_than_two_sevenths_of_bf16() -> None:
    staged = fill(costs_of("staged", Staging()), tokens=32768, memory=4 * GIB)
    assert (staged.pages, staged.three_bit_pages) == (staged.contexts * 36, staged.contexts * 476)
    assert staged.contexts * 32768 * 65536 / staged.pool_bytes >= 3.5
    assert staged.pool_bytes + staged.state_bytes <= 4 * GIB


def test_more_contexts_stay_than_with_fp8_and_no_more_are_admitted() -> None:
    staged = fill(costs_of("staged", Staging()), tokens=32768, memory=8 * GIB)
    fp8 = fill(costs_of("fp8", None), tokens=32768, memory=8 * GIB)
    assert staged.contexts / fp8.contexts >= 1.85
    with pytest.raises(ValueError, match=r"not one context of 32768 tokens fits into 0\.5 GiB"):
        fill(costs_of("fp8", None), tokens=32768, memory=GIB // 2)


def test_the_command_prints_the_mix_with_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--tokens",
        "8192",
        "--recent",
        "16",
        "--envelope-gib",
        "32",
        "--weights-gb",
        "30",
        "--fp8-weights-gb",
        "31",
    ]
    assert main(["capacity", *arguments]) == 0
    said = capsys.readouterr().out
    assert "contexts of 8192 tokens, pages of 64; anchors 4, recent pages 16" in said
    assert "page ages: 20.0 pages of a context in FP8, 108.0 in three bits" in said
    assert main(["capacity", "--envelope-gib", "20"]) == 2
    assert "not one context" in capsys.readouterr().err
