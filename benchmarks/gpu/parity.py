"""One layer of each kind at the full widths of the 27B model, on the GPU, against `transformers` in float32.

python -m benchmarks.gpu.parity RESULTS.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.cuda.load import device_gates, load_cuda_hybrid
from inference_grpc.model.hybrid_config import read_hf_config
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.tiny import write_tiny

FULL = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mtp_num_hidden_layers": 0,
}
PROMPT, GENERATED = 150, 6


def reference(folder: Path, token_ids: list[int]) -> torch.Tensor:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from inference_grpc.model.safetensors import SafetensorsFolder

    content = HfCheckpoint(folder).config
    fields = {key: value for key, value in content.items() if key not in ("architectures", "model_type")}
    stored = SafetensorsFolder(folder)
    with torch.device("cuda"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields)).eval().float()
    model.load_state_dict({name: stored.read(name).float() for name in stored.tensors}, strict=False)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids], device="cuda"), use_cache=False).logits[0]
    return logits


def ours(folder: Path, token_ids: list[int], recipe: str, *, plain: bool) -> tuple[torch.Tensor, list[str]]:
    """Logits of the last prompt token and of each token after it."""
    checkpoint = HfCheckpoint(folder)
    config = read_hf_config(folder / "config.json", checkpoint.config)
    device = torch.device("cuda", 0)
    gates = device_gates(device)
    model, _ = load_cuda_hybrid(
        checkpoint,
        config,
        name="layers",
        vocabulary=320,
        recipe=read_recipe(recipe),
        device=device,
        passed=lambda gate: not plain and gate in gates,
    )
    model.allocate(pages=8, page_tokens=64, state_slots=2)
    sequence = Sequence(key=0, choice=0, prompt_ids=token_ids[:PROMPT], sampling=SamplingParams(), seed=0, max_tokens=9)
    sequence.page_ids, sequence.state_slot = [3, 1, 2], 1
    rows = [model.forward(Batch([Chunk(sequence, 0, PROMPT)]))[0].clone()]
    for token in token_ids[PROMPT:]:
        sequence.append(token)
        rows.append(model.forward(Batch([Chunk(sequence, len(sequence.token_ids) - 1, 1)]))[0].clone())
    return torch.stack(rows), sorted(model.ways.on)


def main(results: Path) -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    token_ids = torch.randint(0, 270, (PROMPT + GENERATED,)).tolist()
    found: dict[str, Any] = {"prompt": PROMPT, "generated": GENERATED, "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_tiny(Path(scratch) / "model", **FULL)
        expected = reference(folder, token_ids)[PROMPT - 1 :]
        for recipe in ("auto", "bf16", "fp8", "nvfp4"):
            # Narrow weights are other weights, so there the plain way on the same weights is what counts.
            wanted, against = expected[:, :320], "transformers, float32"
            if recipe in ("fp8", "nvfp4"):
                wanted, against = ours(folder, token_ids, recipe, plain=True)[0], "the plain way"
            actual, ways = ours(folder, token_ids, recipe, plain=recipe == "auto")
            found["rows"].append(
                {
                    "recipe": recipe,
                    "ways": ways,
                    "against": against,
                    "prefill": float((actual[0] - wanted[0]).norm() / wanted[0].norm()),
                    "decode": float((actual[1:] - wanted[1:]).norm() / wanted[1:].norm()),
                    "largest": float((actual - wanted).abs().max()),
                    "greedy_equal": int((actual.argmax(-1) == wanted.argmax(-1)).sum()),
                    "of": len(actual),
                }
            )
            results.write_text(json.dumps(found, indent=1))
            print(found["rows"][-1], flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
