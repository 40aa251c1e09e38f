"""Gates and ways: a fast way is off until its gate has passed under the very key of this machine."""

from __future__ import annotations

import json

import pytest

from kernels import gates, paths
from kernels.dispatch import BLACKWELL, CPU, HOPPER
from kernels.gate_checks import CHECKS


def test_every_gate_of_the_table_has_a_check():
    assert {gate for way in paths.TABLE for gate in way.gates} == set(CHECKS)


def test_with_all_gates_passed_everything_is_on_for_hopper():
    choice = paths.choose(HOPPER, ["nvfp4", "bf16"], lambda gate: True)
    assert choice.on == {"packed", "fused", "chunked", "paged", "flash", "overlap", "graphs", "sampler"}
    assert "product x nvfp4 x sm_90 [packed] -> native/stream_gemm.cu, native/wide_gemm.cu" in choice.lines
    assert not any(line.startswith("product x fp8") for line in choice.lines)


def test_without_gates_all_is_plain_and_the_lines_say_which_gate_is_missing():
    choice = paths.choose(HOPPER, ["fp8"], lambda gate: False)
    assert choice.on == set()
    assert (
        "product x fp8 x sm_90 [packed] -> plain PyTorch (native/stream_gemm.cu, native/wide_gemm.cu is off: "
        "gate fp8.stream has not passed here)" in choice.lines
    )


@pytest.mark.parametrize("missing", ["nvfp4.stream", "gated_delta_rule.step", "paged_attention.step"])
def test_the_fused_step_is_whole_or_off(missing):
    choice = paths.choose(HOPPER, ["nvfp4"], lambda gate: gate != missing)
    assert choice.on == {"chunked", "flash", "sampler"}
    assert any("another part of the fused step is off" in line for line in choice.lines)


def test_a_cache_in_two_stages_is_on_only_where_it_was_proved():
    wanted = ["nvfp4", "three_bit"]
    assert "staged" in paths.choose(HOPPER, wanted, lambda gate: True)
    assert "staged" not in paths.choose(HOPPER, ["nvfp4"], lambda gate: True)
    for missing in ("paged_attention.staged", "step.staged"):
        choice = paths.choose(HOPPER, wanted, lambda gate, missing=missing: gate != missing)
        assert "staged" not in choice
        assert {"fused", "graphs"} <= choice.on
        assert any("FP8 pages alone" in line and f"gate {missing} has not passed here" in line for line in choice.lines)
    choice = paths.choose(HOPPER, wanted, lambda gate: gate != "paged_attention.step")
    assert "staged" not in choice
    choice = paths.choose(HOPPER, wanted, lambda gate: True, staged_misfit="pages of 16 tokens are not of 64")
    assert any(line.endswith("is off: pages of 16 tokens are not of 64)") for line in choice.lines)
    assert "staged" not in paths.choose(BLACKWELL, wanted, lambda gate: True)


def test_a_missing_gate_of_graphs_leaves_the_step_on():
    choice = paths.choose(HOPPER, ["nvfp4"], lambda gate: gate != "step.graph")
    assert "fused" in choice
    assert "graphs" not in choice


def test_a_shape_that_does_not_fit_keeps_the_step_off_by_name():
    choice = paths.choose(HOPPER, ["nvfp4"], lambda gate: True, misfit="a head size of 32 is not 256 or 1024")
    assert choice.on == {"chunked", "flash", "sampler"}
    assert any(line.endswith("is off: a head size of 32 is not 256 or 1024)") for line in choice.lines)


def test_heads_that_the_chunked_way_cannot_take_keep_it_off_by_name():
    misfit = "heads of Gated DeltaNet of [32, 32] are not [128, 128]"
    choice = paths.choose(HOPPER, ["nvfp4"], lambda gate: True, misfit=misfit, chunk_misfit=misfit)
    assert choice.on == {"flash", "sampler"}
    assert any("[chunked] -> plain PyTorch" in line and line.endswith(f"is off: {misfit})") for line in choice.lines)


def test_other_chips_get_what_was_built_for_them():
    assert paths.choose(CPU, ["nvfp4"], lambda gate: True).on == set()
    assert paths.choose(BLACKWELL, ["nvfp4"], lambda gate: True).on == {"chunked", "flash", "sampler"}


def test_results_count_under_their_own_key_only(tmp_path):
    path = tmp_path / "gates.json"
    gates.record("chip A", {"one": {"passed": True}, "two": {"passed": False}}, path)
    gates.record("chip A", {"three": {"passed": True}}, path)
    gates.record("chip B", {"two": {"passed": True}}, path)
    assert gates.read_gates("chip A", path).passed == {"one", "three"}
    assert gates.read_gates("chip B", path).passed == {"two"}
    assert gates.read_gates("chip C", path).passed == set()


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"key": {"one": {}}}), json.dumps({"key": [1]})])
def test_a_damaged_file_has_nothing_passed(tmp_path, content):
    path = tmp_path / "gates.json"
    path.write_text(content)
    assert gates.read_gates("key", path).passed == set()
    gates.record("other", {"one": {"passed": True}}, path)
    assert "one" in gates.read_gates("other", path)


def test_the_key_names_chip_versions_and_sources():
    key = gates.key_of("NVIDIA H200", (9, 0))
    assert key.startswith("NVIDIA H200 (sm_90), torch ")
    assert key.endswith(f"kernels {gates.sources_hash()}")


def test_a_check_that_cannot_run_has_not_passed():
    def fails() -> str:
        raise RuntimeError("no such chip")

    result = gates.run_check(fails)
    assert result["passed"] is False
    assert result["said"] == "RuntimeError: no such chip"
    assert gates.run_check(lambda: "equal")["passed"] is True


def test_without_a_gpu_the_command_says_so(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit) as stopped:
        gates.main([])
    assert stopped.value.code == 2
    assert "no NVIDIA GPU is visible to torch" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        gates.main(["no.such.gate"])
    assert "there is no gate 'no.such.gate'" in capsys.readouterr().err


def test_splits_of_a_machine_go_before_those_of_the_first_one(tmp_path):
    from kernels import tuning

    path = tmp_path / "splits.json"
    assert tuning.read_splits("key", path) == tuning.H200
    gates.record("key", {"nvfp4 5120x6144 x 8": [1, 16]}, path)
    assert tuning.read_splits("key", path) == tuning.H200 | {"nvfp4 5120x6144 x 8": (1, 16)}
    path.write_text('{"key": {"nvfp4 5120x6144 x 8": "odd"}}')
    assert tuning.read_splits("key", path) == tuning.H200


def test_the_step_takes_what_was_measured_and_else_the_fewest_parts():

    from kernels.benchmarks.random_trunk import random_trunk
    from kernels.hybrid_step import StepShape, default_config, split_name

    shape = StepShape(64, 128, 2, 1, 64, 1, 2, 32, 16)
    trunk, _ = random_trunk("nvfp4", layers=4, device="cpu", vocabulary=64, shape=shape)
    plain = default_config(trunk, 8)
    assert {splits for splits, _ in plain.values()} == {1}
    name = split_name(trunk.layers[0].down, 8)
    assert default_config(trunk, 8, measured={name: (2, 4)})["down"] == (2, 4)
    assert default_config(trunk, 8, invariant=True, measured={name: (2, 4)}) == default_config(
        trunk, 32, invariant=True
    )
