"""Folders: every convention gives the same numbers, every damage is named by file and tensor, nothing loads half."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from inference_grpc.config import EngineConfig
from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.engine import load_backend
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Fp8, Fp8Blocks, Nvfp4, Plain
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.quantization import quantize_fp8
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.safetensors import INDEX, SINGLE, SafetensorsFolder, write_folder
from inference_grpc.model.tiny import write_tiny
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.text.tokenizer import ModelTokenizer
from kernels.nvfp4.reference import quantize as quantize_nvfp4
from tests.inference_grpc.model.hybrids import make_sequence

TOKENS = np.random.default_rng(4).integers(0, 270, 90).tolist()
UP = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("folder"), dtype=torch.float32)


def logits_of(path: Path, **options: Any) -> torch.Tensor:
    model = load_model(open_checkpoint(path), name="m", vocabulary=271, product="float32", **options).model
    model.allocate(pages=20, page_tokens=16, state_slots=2)
    return model.forward(Batch([Chunk(make_sequence(TOKENS), 0, len(TOKENS))]))[0]


Tensors = dict[str, torch.Tensor]


def rewritten(folder: Path, target: Path, change: Callable[[Tensors], None], **config: Any) -> Path:
    """A copy of the folder with other tensors and keys."""
    target.mkdir()
    tensors: Tensors = load_file(folder / SINGLE)
    change(tensors)
    write_folder(target, tensors.items())
    content = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(content | config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def test_our_files_are_read_by_the_formats_own_library_and_back(folder: Path) -> None:
    theirs, ours = load_file(folder / SINGLE), SafetensorsFolder(folder)
    assert theirs.keys() == ours.tensors.keys()
    for name, values in theirs.items():
        assert torch.equal(ours.read(name), values)


def test_shards_are_one_model(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / SINGLE)
    whole = rewritten(folder, tmp_path / "whole", lambda tensors: None)
    (whole / SINGLE).unlink()
    write_folder(whole, tensors.items(), shard_bytes=100_000)
    assert len(list(whole.glob("model-*-of-*.safetensors"))) > 3
    assert (whole / INDEX).is_file()
    assert torch.equal(logits_of(whole), logits_of(folder))
    next(iter(sorted(whole.glob("model-00002*")))).unlink()
    with pytest.raises(ModelFileError, match=r"model-00002.*missing from the folder"):
        open_checkpoint(whole)


def as_fp8(tensors: Tensors, name: str = UP) -> Fp8:
    stored = quantize_fp8(tensors.pop(f"{name}.weight"))
    tensors[f"{name}.weight"] = stored.values
    return stored


def test_fp8_by_row_by_tensor_and_by_block(folder: Path, tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def by_row(tensors: Tensors) -> None:
        kept["row"] = as_fp8(tensors)
        tensors[f"{UP}.weight_scale"] = kept["row"].scale[:, None]
        tensors[f"{UP}.input_scale"] = torch.tensor(0.5)

    def by_tensor(tensors: Tensors) -> None:
        kept["tensor"] = as_fp8(tensors)
        tensors[f"{UP}.weight_scale"] = torch.tensor(0.25)

    def by_block(tensors: Tensors) -> None:
        kept["block"] = as_fp8(tensors)
        tensors[f"{UP}.weight_scale_inv"] = torch.tensor([[0.125]])

    def read(change: Callable[[Tensors], None]) -> Any:
        path = rewritten(folder, tmp_path / change.__name__, change)
        return open_checkpoint(path).checkpoint.matrix("layers.1.mlp.up_proj", 128, 64)

    row, tensor, block = read(by_row), read(by_tensor), read(by_block)
    assert isinstance(row, Fp8)
    assert row.input_scale == 0.5
    assert torch.equal(row.to_float(), kept["row"].to_float())
    assert torch.equal(tensor.to_float(), kept["tensor"].values.float() * 0.25)
    assert isinstance(block, Fp8Blocks)
    assert torch.equal(block.to_float(), kept["block"].values.float() * 0.125)


def test_nvfp4_of_modelopt_and_of_compressed_tensors_are_the_same_bits(folder: Path, tmp_path: Path) -> None:
    def modelopt(tensors: Tensors) -> None:
        stored = quantize_nvfp4(tensors.pop(f"{UP}.weight"))
        tensors |= {
            f"{UP}.weight": stored.codes,
            f"{UP}.weight_scale": stored.scales,
            f"{UP}.weight_scale_2": torch.tensor(2.0**-9),
            f"{UP}.input_scale": torch.tensor(2.0**-7),
        }

    def compressed(tensors: Tensors) -> None:
        stored = quantize_nvfp4(tensors.pop(f"{UP}.weight"))
        tensors |= {
            f"{UP}.weight_packed": stored.codes,
            f"{UP}.weight_scale": stored.scales,
            f"{UP}.weight_global_scale": torch.tensor([2.0**9]),
            f"{UP}.input_global_scale": torch.tensor([2.0**7]),
        }

    paths = [rewritten(folder, tmp_path / change.__name__, change) for change in (modelopt, compressed)]
    first, second = (open_checkpoint(path).checkpoint.matrix("layers.1.mlp.up_proj", 128, 64) for path in paths)
    assert isinstance(first, Nvfp4)
    assert isinstance(second, Nvfp4)
    assert first.matrix.input_multiplier == second.matrix.input_multiplier == 2.0**-7
    assert torch.equal(first.to_float(), second.to_float())
    assert torch.equal(logits_of(paths[0]), logits_of(paths[1]))


def test_matrices_that_share_a_product_keep_their_own_scales(folder: Path, tmp_path: Path) -> None:
    gate = UP.replace("up_proj", "gate_proj")

    def narrow(tensors: Tensors) -> None:
        for name, size in ((gate, 1 / 64), (UP, 1.0)):
            stored = quantize_nvfp4(tensors.pop(f"{name}.weight") * size)
            tensors |= {
                f"{name}.weight": stored.codes,
                f"{name}.weight_scale": stored.scales,
                f"{name}.weight_scale_2": stored.multiplier[0],
            }

    stored = rewritten(folder, tmp_path / "narrow", narrow)
    read = {
        name: open_checkpoint(stored).checkpoint.matrix(f"layers.1.mlp.{name}_proj", 128, 64) for name in ("gate", "up")
    }
    multipliers = [matrix.matrix.multiplier[0] for matrix in read.values() if isinstance(matrix, Nvfp4)]
    assert multipliers[1] > 20 * multipliers[0]

    def plain(tensors: Tensors) -> None:
        tensors |= {f"{gate}.weight": read["gate"].to_float(), f"{UP}.weight": read["up"].to_float()}

    torch.testing.assert_close(
        logits_of(stored), logits_of(rewritten(folder, tmp_path / "plain", plain)), rtol=1e-4, atol=1e-4
    )


def test_a_draft_layer_that_the_configuration_calls_quantized_is_read_as_it_is_stored(
    folder: Path, tmp_path: Path
) -> None:
    claim = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}}
    path = rewritten(
        folder,
        tmp_path / "m",
        lambda tensors: tensors.update({n: v.bfloat16() for n, v in tensors.items() if n.startswith("mtp.")}),
        **claim,
    )
    matrix = open_checkpoint(path).checkpoint.matrix("mtp.layers.0.mlp.up_proj", 128, 64)
    assert isinstance(matrix, Plain)
    assert matrix.format == "bf16"
    assert bool(logits_of(path).isfinite().all())


def test_a_folder_without_its_draft_layer_runs_without_it(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def forget(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            del tensors[name]

    assert torch.equal(logits_of(rewritten(folder, tmp_path / "m", forget)), logits_of(folder))
    assert "mtp_missing" in caplog.text


def test_scales_of_keys_and_values_are_one_whether_the_folder_has_them_or_not(folder: Path, tmp_path: Path) -> None:
    def cast_recipe(tensors: Tensors) -> None:
        attention = "model.layers.3.self_attn"
        tensors |= {f"{attention}.k_proj.k_scale": torch.tensor(1.0), f"{attention}.v_proj.v_scale": torch.tensor(1.0)}

    path = rewritten(folder, tmp_path / "m", cast_recipe)
    assert torch.equal(logits_of(path), logits_of(folder))


def test_a_scale_the_wrong_way_round_is_refused(folder: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        stored = quantize_nvfp4(tensors.pop(f"{UP}.weight"))
        tensors |= {f"{UP}.weight": stored.codes, f"{UP}.weight_scale": stored.scales}
        tensors[f"{UP}.weight_scale_2"] = 1 / stored.multiplier[0]

    path = rewritten(folder, tmp_path / "m", change)
    with pytest.raises(ModelFileError, match=r"model\.safetensors: tensor .*up_proj\.weight.*multiplier"):
        logits_of(path)


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, values: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: values})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(f"{UP}.weight"), "up_proj.weight' is missing"),
        (drop("model.layers.0.linear_attn.A_log"), "A_log.*' is missing"),
        (drop("mtp.norm.weight"), "mtp.norm.weight' is missing"),
        (put(f"{UP}.weight", torch.zeros(4, 64)), r"up_proj.weight' has shape \[4, 64\], expected \[128, 64\]"),
        (put("model.norm.weight", torch.zeros(3)), r"norm.weight' has shape \[3\], expected \[64\]"),
        (put("model.norm.weight", torch.full((64,), float("nan"))), "norm.weight' holds values that are not finite"),
        (put(f"{UP}.bias", torch.zeros(128)), "up_proj.bias' has no place"),
        (put(f"{UP}.weight", torch.zeros(128, 64, dtype=torch.int32)), "up_proj.weight' is stored as torch.int32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    path = rewritten(folder, tmp_path / "m", change)
    with pytest.raises(ModelFileError, match=rf"{path}.*{message}"):
        logits_of(path)


def test_a_vision_tower_is_left_alone(folder: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.replace("model.", "model.language_model.", 1)] = tensors.pop(name)
        tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 2)

    assert torch.equal(logits_of(rewritten(folder, tmp_path / "m", change)), logits_of(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method is 'awq'; supported are"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'; supported are default, linear,"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "four"}}, "factor of rope_type 'yarn' is 'four'; it must"),
        ({"layer_types": ["full_attention"]}, "layer_types must name"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2"),
    ],
)
def test_configurations_that_we_cannot_run_are_refused(
    folder: Path, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    path = rewritten(folder, tmp_path / "m", lambda tensors: None, **config)
    with pytest.raises(ModelFileError, match=rf"config\.json: {message}"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("config", "own", "kv"),
    [
        ({}, None, "float32"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, None, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, None, "float32"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, None, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None, "float32"),
        ({"quant_method": "modelopt"}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({}, {"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({}, {"producer": {"name": "modelopt"}}, "float32"),
    ],
)
def test_the_format_of_the_cache_is_found_in_either_file(
    folder: Path, tmp_path: Path, config: dict[str, Any], own: dict[str, Any] | None, kv: str
) -> None:
    path = rewritten(
        folder, tmp_path / "m", lambda tensors: None, **({"quantization_config": config} if config else {})
    )
    if own is not None:
        (path / "hf_quant_config.json").write_text(json.dumps(own))
    assert open_checkpoint(path).checkpoint.kv == kv
    with closing(load_backend(EngineConfig(model=str(path), checkpoint_mib=1, packed_mib=0))) as backend:
        assert (f"kv {kv}" in backend.info().precision) == (kv == "fp8")


def test_every_truncation_and_damaged_header_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    whole = (folder / SINGLE).read_bytes()
    target = tmp_path / "m"
    target.mkdir()
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    for size in [*range(0, 12), 500, *range(9000, len(whole), 40_001), len(whole) - 1]:
        (target / SINGLE).write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"model\.safetensors"):
            open_checkpoint(target)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}, "needs 16 bytes, 8 are declared"),
        ({"dtype": "F32", "shape": [1 << 60, 4], "data_offsets": [0, 16]}, "needs"),
        ({"dtype": "Q9", "shape": [4], "data_offsets": [0, 16]}, "type 'Q9' is not known"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}, "absurd"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}, "overlap"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [1000, 1016]}, "truncated"),
    ],
)
def test_impossible_entries_are_refused(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "b": entry}).encode()
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(32))
    with pytest.raises(ModelFileError, match=rf"model\.safetensors.*{message}"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_dense_folders_equal_transformers(tmp_path: Path, family: str) -> None:
    import transformers

    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_parameters": scaled | {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}}
    extra = rope if family == "llama" else {"num_hidden_layers": 1}
    path = write_tiny(tmp_path / family, "llama", dtype=torch.float32, **{"model_type": family} | extra)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0, -1, :271]
    torch.testing.assert_close(logits_of(path), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.3, "beta_fast": 8, "beta_slow": 2}])
def test_a_context_that_yarn_stretches_equals_transformers(tmp_path: Path, more: dict[str, float]) -> None:
    import transformers

    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    path = write_tiny(
        tmp_path / "m", "llama", dtype=torch.float32, rope_parameters=rope | more, max_position_embeddings=64
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0, -1, :271]
    torch.testing.assert_close(logits_of(path), expected, rtol=1e-4, atol=1e-4)
    assert open_checkpoint(path).config.context_tokens == 256


def test_the_tokenizer_of_a_folder_is_its_own(folder: Path) -> None:
    import tokenizers

    metadata = read_hf_tokenizer(folder)
    tokenizer, own = ModelTokenizer(metadata), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "<|im_start|>user\nhello the wörld 123  ̈x<|im_end|>\n<think>"
    assert tokenizer.encode(text) == own.encode(text, add_special_tokens=False).ids
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("the wörld"))) == "the wörld".encode()
    assert tokenizer.eos_ids == {0, 2}
    assert metadata["tokenizer.chat_template"]


RECIPE = """
kv = "fp8"
activations = "narrow"
[[rules]]
match = "*.mlp.*"
format = "nvfp4"
"""


def test_recipes_decide_by_the_first_rule_that_fits(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    recipe = read_recipe(str(path))
    assert (recipe.name, recipe.kv, recipe.format_of("layers.0.mlp.up_proj")) == ("mine", "fp8", "nvfp4")
    assert recipe.format_of("lm_head") == "keep"
    loaded = load_model(open_checkpoint(folder), name="m", vocabulary=271, recipe=recipe)
    assert loaded.model.precision == "mine (25 f32, 15 nvfp4, nvfp4 as W4A4, kv fp8)"
    for broken, message in (
        ("rules = 3", "rules must be"),
        ('kv = "int8"', "kv is 'int8'"),
        ('[[rules]]\nmatch = "*"\nformat = "int4"', "rule 1: format is 'int4'"),
        ('colour = "red"', "'colour' is not known"),
        ("= nothing", "TOML"),
    ):
        path.write_text(broken)
        with pytest.raises(ModelFileError, match=message):
            read_recipe(str(path))
    with pytest.raises(ModelFileError, match="neither one of auto, bf16, fp8, nvfp4 nor"):
        read_recipe("int8")


def test_three_precisions_run_and_lose_what_their_formats_lose(folder: Path) -> None:
    exact = logits_of(folder)
    errors = [logits_of(folder, recipe=read_recipe(name)) - exact for name in ("bf16", "fp8", "nvfp4")]
    bf16, fp8, nvfp4 = (float(error.norm() / exact.norm()) for error in errors)
    assert 0 < bf16 < 0.02 < fp8 < 0.3
    assert fp8 < nvfp4 < 0.8


def test_plain_matrices_keep_their_bits(folder: Path) -> None:
    matrix = open_checkpoint(folder).checkpoint.matrix("layers.1.mlp.up_proj", 128, 64)
    assert isinstance(matrix, Plain)
    assert torch.equal(matrix.values, load_file(folder / SINGLE)[f"{UP}.weight"])
