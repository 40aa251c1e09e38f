"""The tiny hybrid on a GPU, whose shapes no fast form takes: the plain way there says what it says on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("recipe", ["auto", "bf16", "nvfp4", "fp8"])
def test_a_shape_that_no_kernel_takes_goes_the_plain_way(tmp_path: Path, recipe: str) -> None:
    for package in ("tokenizers", "gguf"):
        pytest.importorskip(package)
    from inference_grpc.model.cuda.load import load_cuda_hybrid
    from inference_grpc.model.load import open_checkpoint
    from inference_grpc.model.recipe import read_recipe
    from inference_grpc.model.tiny import write_tiny

    found = {}
    opened = write_tiny(tmp_path / "tiny")
    for device in ("cpu", "cuda"):
        checkpoint = open_checkpoint(opened)
        model, _ = load_cuda_hybrid(
            checkpoint.checkpoint,
            checkpoint.config,
            name="tiny",
            vocabulary=270,
            recipe=read_recipe(recipe),
            device=torch.device(device),
            passed=lambda gate: True,
            invariant=True,
        )
        assert not model.ways.on & {"packed", "fused", "chunked", "paged"}
        model.allocate(pages=12, page_tokens=64, state_slots=4)
        found[device] = model._trial(slice(None))
        if device == "cuda":
            assert model.is_batch_invariant()
    for on_cpu, on_gpu in zip(found["cpu"], found["cuda"], strict=True):
        # Keys and values may round to the next number of e4m3 on one of them.
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=0.1 if read_recipe(recipe).kv == "fp8" else 2e-3)


def test_chunked_heads_of_another_size_are_refused() -> None:
    from kernels.gated_delta_rule.chunk import chunked
    from kernels.ragged import make_ragged

    rows, state = torch.zeros(4, 2, 32, device="cuda"), torch.zeros(1, 2, 32, 32, device="cuda")
    at = make_ragged([4], [0], [0], "cuda")
    with pytest.raises(ValueError, match=r"not \[32, 32\]"):
        chunked(rows, rows, rows, rows[..., 0], rows[..., 0], state, at)
