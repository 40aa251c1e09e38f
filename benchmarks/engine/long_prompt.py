"""A prompt as long as the longest context on a narrow random hybrid: positions, page tables and states hold out.

    python -m benchmarks.engine.long_prompt [--tokens 200000] [--chunk 2048]

The prompt is computed in chunks, then its last tokens once more from a kept state; both must give the same bits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from inference_grpc.core.batch import Batch, Chunk, Move
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.tiny import write_tiny

PAGE = 64
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 64,
}


def run(tokens: int, chunk: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits after the prompt; the same from the state that was kept a chunk before its end; seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_tiny(Path(scratch) / "narrow", **NARROW)
        model = load_model(open_checkpoint(folder), name="narrow", vocabulary=271).model
        pages = -(-tokens // PAGE)
        model.allocate(pages=pages, page_tokens=PAGE, state_slots=2)
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(7, 271, (tokens,), generator=generator).tolist()
        sequence = Sequence(key=0, choice=0, prompt_ids=prompt, sampling=SamplingParams(), seed=0, max_tokens=1)
        sequence.page_ids, sequence.state_slot = list(range(pages))[::-1], 0
        began = time.monotonic()
        kept = (tokens - 1) // chunk * chunk
        for start in range(0, tokens, chunk):
            moves = [Move("state", 0, 1)] if start == kept else []
            whole = model.forward(Batch([Chunk(sequence, start, min(chunk, tokens - start))], moves))
        sequence.state_slot = 1
        again = model.forward(Batch([Chunk(sequence, kept, tokens - kept)]))
        return whole[0], again[0], time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.long_prompt", description=__doc__)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--chunk", type=int, default=2048, help="a multiple of 64")
    arguments = parser.parse_args()
    whole, again, seconds = run(arguments.tokens, arguments.chunk)
    if not torch.equal(whole, again) or not bool(whole.isfinite().all()):
        raise SystemExit("the logits are not finite, or differ when they are computed from the kept state")
    print(f"{arguments.tokens} tokens in {seconds:.0f} s; the same bits from a kept state")


if __name__ == "__main__":
    main()
