"""quantize, export-gguf, inspect: what is written is read back as the same bits, in both containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.formats import Fp8, Nvfp4, Plain
from inference_grpc.model.gguf_checkpoint import GgufCheckpoint
from inference_grpc.model.hybrid import rms_norm
from inference_grpc.model.load import load_model, matrix_names, open_checkpoint
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.tiny import write_tiny
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.text.tokenizer import ModelTokenizer
from inference_grpc.tools.__main__ import main
from tests.inference_grpc.model.hybrids import make_sequence

TOKENS = np.random.default_rng(4).integers(0, 270, 90).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tools") / "tiny")


@pytest.fixture(scope="module")
def nvfp4(folder: Path) -> Path:
    target = folder.parent / "tiny-nvfp4"
    assert main(["quantize", str(folder), str(target), "--recipe", "nvfp4"]) == 0
    return target


def matrices(path: Path) -> dict[str, Plain | Fp8 | Nvfp4]:
    opened = open_checkpoint(path)
    made: dict[str, Plain | Fp8 | Nvfp4] = {}
    for name in matrix_names(opened):
        if isinstance(opened.checkpoint, HfCheckpoint):
            rows, columns = opened.checkpoint.matrix_shape(name)
        else:
            assert isinstance(opened.checkpoint, GgufCheckpoint)
            assert opened.file is not None
            rows, columns = opened.file.tensors[opened.checkpoint.stored_name(name)].shape
        matrix = opened.checkpoint.matrix(name, rows, columns)
        assert isinstance(matrix, Plain | Fp8 | Nvfp4)
        made[name] = matrix
    return made


def assert_same_bits(first: Plain | Fp8 | Nvfp4, second: Plain | Fp8 | Nvfp4) -> None:
    assert type(first) is type(second)
    if isinstance(first, Nvfp4) and isinstance(second, Nvfp4):
        assert torch.equal(first.matrix.codes, second.matrix.codes)
        assert torch.equal(first.matrix.scales.view(torch.uint8), second.matrix.scales.view(torch.uint8))
        assert torch.equal(first.matrix.multiplier, second.matrix.multiplier)
    elif isinstance(first, Fp8) and isinstance(second, Fp8):
        assert torch.equal(first.values.view(torch.uint8), second.values.view(torch.uint8))
        assert torch.equal(first.scale, second.scale)
    else:
        assert isinstance(first, Plain)
        assert isinstance(second, Plain)
        assert first.values.dtype == second.values.dtype
        assert torch.equal(first.values, second.values)


def logits_of(path: Path) -> torch.Tensor:
    model = load_model(open_checkpoint(path), name="m", vocabulary=271, product="float32").model
    model.allocate(pages=20, page_tokens=16, state_slots=2)
    return model.forward(Batch([Chunk(make_sequence(TOKENS), 0, len(TOKENS))]))[0]


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8", "bf16"])
def test_quantized_folders_hold_what_the_recipe_makes(folder: Path, tmp_path: Path, recipe: str) -> None:
    target = tmp_path / "out"
    assert main(["quantize", str(folder), str(target), "--recipe", recipe]) == 0
    made = matrices(target)
    for name, matrix in matrices(folder).items():
        assert_same_bits(read_recipe(recipe).convert(name, matrix), made[name])
    assert {file.name for file in target.iterdir()} >= {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("is_quantized", [False, True])
def test_hybrids_survive_gguf_bit_by_bit(folder: Path, nvfp4: Path, tmp_path: Path, is_quantized: bool) -> None:
    source, target = nvfp4 if is_quantized else folder, tmp_path / "m.gguf"
    assert main(["export-gguf", str(source), str(target)]) == 0
    made = matrices(target)
    for name, matrix in matrices(source).items():
        assert_same_bits(matrix, made[name])
    # Norms and A_log are stored in another form, which rounds.
    torch.testing.assert_close(logits_of(target), logits_of(source), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_dense_models_survive_gguf(tmp_path: Path, family: str) -> None:
    source = write_tiny(tmp_path / family, "llama", model_type=family)
    target = tmp_path / "m.gguf"
    assert main(["export-gguf", str(source), str(target)]) == 0
    torch.testing.assert_close(logits_of(target), logits_of(source), rtol=1e-5, atol=1e-5)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}


@pytest.mark.parametrize("rope", [YARN, {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0}])
@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
def test_stretched_contexts_survive_gguf(tmp_path: Path, family: str, rope: dict[str, Any]) -> None:
    rope = rope | ({"partial_rotary_factor": 0.5} if family == "qwen3_5" else {})
    source = write_tiny(tmp_path / family, family, rope_parameters=rope, max_position_embeddings=96)
    target = tmp_path / "m.gguf"
    assert main(["export-gguf", str(source), str(target)]) == 0
    torch.testing.assert_close(logits_of(target), logits_of(source), rtol=1e-5, atol=1e-5)
    first, second = open_checkpoint(source).config, open_checkpoint(target).config
    assert first.rope == second.rope
    assert first.context_tokens == second.context_tokens


@pytest.mark.parametrize(
    "rope",
    [
        YARN | {"attention_factor": 1.5},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_what_gguf_cannot_say_of_a_context_is_not_exported(
    tmp_path: Path, rope: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tiny(tmp_path / "m", "llama", rope_parameters=rope | {"rope_theta": 10_000.0})
    assert main(["export-gguf", str(source), str(tmp_path / "m.gguf")]) == 2
    assert f"{rope['rope_type']} factors of this kind cannot be exported; serve the folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_formats_own_library_reads_the_same_nvfp4_values(nvfp4: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    main(["export-gguf", str(nvfp4), str(target)])
    reader = gguf.GGUFReader(target)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    stored = tensors["blk.0.ffn_up.weight"]
    assert stored.tensor_type == gguf.GGMLQuantizationType.NVFP4
    values = gguf.dequantize(stored.data, stored.tensor_type) * tensors["blk.0.ffn_up.scale"].data
    ours = matrices(nvfp4)["layers.0.mlp.up_proj"].to_float()
    np.testing.assert_allclose(values, ours.numpy(), rtol=1e-6)
    assert reader.fields["general.architecture"].contents() == "qwen35"
    assert reader.fields["qwen35.block_count"].contents() == 5
    assert {"blk.4.nextn.eh_proj.weight", "blk.4.attn_q.weight"} <= tensors.keys()


def test_value_heads_stand_tiled_in_the_file(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    main(["export-gguf", str(folder), str(target)])
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    decay = open_checkpoint(folder).checkpoint.vector("layers.0.linear_attn.A_log", 4)
    # Two key heads, four value heads: 0 1 | 2 3 of the model stand as 0 2 1 3.
    np.testing.assert_allclose(tensors["blk.0.ssm_a"].data, -decay[[0, 2, 1, 3]].exp().numpy(), rtol=1e-6)


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8"])
def test_static_scales_of_activations_come_from_a_text(folder: Path, tmp_path: Path, recipe: str) -> None:
    text, target = tmp_path / "text.txt", tmp_path / "calibrated"
    text.write_text("the hero went on and on " * 40)
    assert main(["quantize", str(folder), str(target), "--recipe", recipe, "--calibration", str(text)]) == 0

    made = matrices(target)
    scales = {
        name: matrix.matrix.input_multiplier if isinstance(matrix, Nvfp4) else matrix.input_scale
        for name, matrix in made.items()
        if isinstance(matrix, Nvfp4 | Fp8)
    }
    assert all(scales.values())
    # What goes into the first layer can be told without running the model.
    tokens = ModelTokenizer(read_hf_tokenizer(folder)).encode(text.read_text())
    checkpoint = open_checkpoint(folder).checkpoint
    rows = checkpoint.matrix("embed_tokens", 320, 64).to_float()[tokens]
    normed = rms_norm(rows, 1 + checkpoint.vector("layers.0.input_layernorm", 64), 1e-6)
    largest = {"nvfp4": 2688.0, "fp8": 448.0}[recipe]
    assert scales["layers.0.linear_attn.in_proj_qkv"] == pytest.approx(float(normed.abs().max()) / largest, rel=1e-5)
    # Matrices with one input share its scale, and so their product.
    assert len({scales[f"layers.3.self_attn.{part}_proj"] for part in "qkv"}) == 1
    distance = (logits_of(target) - logits_of(folder)).norm() / logits_of(folder).norm()
    assert float(distance) < 0.8


def test_a_calibration_text_that_says_nothing_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    for text, message in (("empty.txt", "is empty"), ("none.txt", "cannot be read as text")):
        assert main(["quantize", str(folder), str(tmp_path / "x"), "--calibration", str(tmp_path / text)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_refusals_name_the_way_out_and_leave_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fp8 = tmp_path / "fp8"
    main(["quantize", str(folder), str(fp8), "--recipe", "fp8"])
    capsys.readouterr()
    assert main(["export-gguf", str(fp8), str(tmp_path / "m.gguf")]) == 2
    assert "is fp8, which GGUF cannot hold" in capsys.readouterr().err
    assert main(["quantize", str(folder), str(fp8)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["quantize", str(tmp_path / "none"), str(tmp_path / "x")]) == 2
    assert "cannot be opened" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fp8"]


def test_inspect_tells_formats_sizes_and_tokenizer(nvfp4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(nvfp4), "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "26 matrices nvfp4" in text
    assert "layers.3.self_attn.q_proj" in text
    assert "draft layer (MTP): in the file" in text
    assert "271 tokens, ends [0, 2], with chat template" in text
