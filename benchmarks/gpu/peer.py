"""`transformers` eager in bf16 at the full widths, batch 8: steps of 4 and of 8 layers, and what 64 would take.

python -m benchmarks.gpu.peer RESULTS.json
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.gpu.parity import FULL
from inference_grpc.model.tiny import tiny_config

BATCH, PROMPT, STEPS = 8, 64, 12


def step_ms(layers: int) -> float:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    kinds = ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(layers)]
    content = tiny_config() | FULL | {"num_hidden_layers": layers, "layer_types": kinds, "vocab_size": 248_320}
    fields = {key: value for key, value in content.items() if key not in ("architectures", "model_type")}
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields)).eval()
        torch.set_default_dtype(torch.float32)
    times = []
    with torch.inference_mode():
        out = model(torch.randint(0, 1000, (BATCH, PROMPT), device="cuda"), use_cache=True)
        gc.disable()
        for _ in range(STEPS):
            token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            began = time.perf_counter()
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
        gc.enable()
    del model, out
    torch.cuda.empty_cache()
    return median(times[3:])


def main(results: Path) -> None:
    step_ms(4)  # the first model of a process is slower
    four, eight = step_ms(4), step_ms(8)
    whole = eight + (eight - four) / 4 * 56
    found = {"batch": BATCH, "four_ms": four, "eight_ms": eight, "whole_ms": whole, "tokens_per_s": BATCH * 1e3 / whole}
    results.write_text(json.dumps(found, indent=1))
    print(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
