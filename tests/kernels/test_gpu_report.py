"""The page of GPU figures: what is computed is marked so, what was not measured is not claimed."""

from __future__ import annotations

import json

from benchmarks.gpu import report


def test_other_chips_are_marked_computed_and_bound_by_bytes_or_by_operations():
    lines = report.calculated()[2:]
    assert len(lines) == 6
    assert all("(computed)" in line for line in lines)
    cells = {tuple(cell.strip() for cell in line.strip("|").split("|"))[:2]: line for line in lines}
    row = cells["B200 (computed)", "nvfp4"].strip("|").split("|")
    assert int(row[2]) == round(8e12 / report.step_bytes("nvfp4", 1, 640))
    flops_bound = 128 * 0.5e15 / report.weight_flops(128)
    bf16 = cells["RTX PRO 6000 Blackwell (computed)", "bf16"].strip("|").split("|")
    assert int(bf16[5]) <= round(flops_bound)


def test_bars_come_from_results_and_missing_ones_are_left_out(tmp_path):
    assert "Nothing was measured" in report.render(tmp_path, [])
    (tmp_path / "ceilings.json").write_text(
        json.dumps({"device": "chip", "torch": "2", "date": "today", "copy": 4e12, "matmul": 8e14, "sections": {}})
    )
    bare = report.render(tmp_path, ["steps (exit 1)"])
    assert "Parts that failed: steps (exit 1)" in bare
    assert "end to end ≥ 95 %" not in bare
    for kind, rate in (("nvfp4", 1000.0), ("fp8", 800.0)):
        case = {"concurrency": 8, "prompt": 512, "tokens": 256, "seconds": 2.0, "ttft_ms": 100.0}
        case |= {"tokens_per_s": rate / 2, "decode_tokens_per_s": rate}
        found = {"kind": kind, "bare_us": {"8": 7000.0}, "client": {"cases": [case]}}
        (tmp_path / f"engine-{kind}.json").write_text(json.dumps(found))
    page = report.render(tmp_path, [])
    assert "| batch 8, 512 in, 256 out, end to end: NVFP4 ≥ 1.45 x our FP8 | 1.25 | **no** |" in page
    assert "| end to end ≥ 95 % of the bare step | 87.5% | **no** |" in page
    assert "| nvfp4 | 8 | 512 | 256 | 1000 | 1143 | 88% |" in page


def test_the_table_of_single_kernels_gives_its_bars(tmp_path):
    lines = [
        "| sequences | context | FP8 pages | three-bit pages | tokens of a split | us | of copy (KV bytes) |",
        "|---|---|---|---|---|---|---|",
        "| 8 | 32768 | 512 | 0 | 256 | 10 | 80% |",
        "| 8 | 32768 | 36 | 476 | 256 | 20 | 20% |",
    ]
    content = {"device": "chip", "torch": "2", "date": "today", "copy": 4e12, "matmul": 8e14}
    (tmp_path / "sections.json").write_text(json.dumps(content | {"sections": {"Attention of one layer": lines}}))
    page = report.render(tmp_path, [])
    assert "| paged attention at 32K ≥ 75 % of its bytes, in FP8 | 80 % | yes |" in page
    assert "| paged attention at 32K ≥ 75 % of its bytes, staged | 20 % | **no** |" in page


def test_each_way_of_the_library_is_named_and_the_faster_one_decides(tmp_path):
    content = {"device": "chip", "torch": "2", "date": "today", "copy": 4e12, "matmul": 8e14, "sections": {}}
    (tmp_path / "ceilings.json").write_text(json.dumps(content))
    step = {"kind": "nvfp4", "batch": 8, "us": 6000.0, "weights_bytes": 1}
    (tmp_path / "steps.json").write_text(json.dumps([step]))
    ways = [{"scales": "row", "batch": 8, "us": 12000.0}, {"scales": "one", "batch": 8, "us": 9000.0}]
    (tmp_path / "library.json").write_text(json.dumps(ways))
    page = report.render(tmp_path, [])
    assert "| 2.00 x by row, 1.50 x with one multiplier, known beforehand | **no** |" in page
    assert "| 8 | fp8, torch's library, by row | 12.00 | 667 |" in page


def test_a_staged_cache_is_told_with_its_mix(tmp_path):
    (tmp_path / "ceilings.json").write_text(
        json.dumps({"device": "chip", "torch": "2", "date": "today", "copy": 4e12, "matmul": 8e14, "sections": {}})
    )
    held = {"fp8_pages": 3600, "three_bit_pages": 47600}
    found = {"tokens": 32768, "envelope": 2**34, "contexts": 100, "fp8_cache_contexts": 50, "step_ms": 40.0}
    (tmp_path / "staged.json").write_text(json.dumps(found | {"held": held, "fits_envelope": False}))
    page = report.render(tmp_path, [])
    assert "100 contexts of 32768 tokens at once, 36.0 pages of each in FP8 and 476.0 in three bits, **beyond**" in page
