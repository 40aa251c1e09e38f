"""A prompt nearly as long as the longest context, on a narrow random hybrid: positions, pages and states hold out.

    python -m benchmarks.engine.long_prompt [--tokens 200000] [--report docs/benchmarks/long-prompt.md]

The prompt goes through the whole engine twice, the second time from found pages and a kept state, with the same text.
The logits at its end are those of `transformers`, which computes it in one piece.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import StepRows
from inference_grpc.core.request import Request, SamplingParams
from inference_grpc.engine import load_backend
from inference_grpc.events import Failed, Finished, TextDelta
from inference_grpc.model.safetensors import SafetensorsFolder
from inference_grpc.model.tiny import tiny_config, write_tiny

PAGE = 64
ANSWER_TOKENS = 8
TOLERANCE = 1e-4
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


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    cached_tokens: int
    top: tuple[float, ...]  # log-probabilities of the likeliest first tokens, in order
    seconds: float


class LongPrompt:
    """A narrow model, served with pages for one prompt of `tokens` and its answer."""

    def __init__(self, folder: Path, tokens: int) -> None:
        config = EngineConfig(
            model=str(folder),
            page_tokens=PAGE,
            pages=-(-tokens // PAGE) + 2,
            max_sequences=1,
            prefill_tokens=2048,
            checkpoint_mib=1,
            packed_mib=0,
        )
        self._backend = load_backend(config)
        self._rows: StepRows = []
        self._is_over = threading.Event()
        self._backend.start(self._on_step)

    def run(self, prompt: list[int]) -> Answer:
        self._rows.clear()
        self._is_over.clear()
        began = time.monotonic()
        request = Request(
            "long", prompt, SamplingParams(temperature=0.0), max_tokens=ANSWER_TOKENS, ignore_eos=True,
            logprobs=True, top_logprobs=20,
        )  # fmt: skip
        self._backend.submit(1, self._backend.prepare(request))
        self._is_over.wait()
        last = self._rows[-1][1]
        if isinstance(last, Failed):
            raise SystemExit(f"the prompt failed: {last.message}")
        assert isinstance(last, Finished)
        deltas = [event for _, event in self._rows if isinstance(event, TextDelta)]
        first = next(token for delta in deltas for token in delta.logprobs or ())
        return Answer(
            "".join(delta.text for delta in deltas),
            last.usage.cached_tokens,
            tuple(other.logprob for other in first.top),
            time.monotonic() - began,
        )

    def close(self) -> None:
        self._backend.close()
        self._backend.engine.check_integrity()

    def _on_step(self, rows: StepRows) -> None:
        self._rows += rows
        if isinstance(rows[-1][1], Finished | Failed):
            self._is_over.set()


def reference(folder: Path, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities after the prompt by `transformers`, float32."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    content = {key: value for key, value in tiny_config(**NARROW).items() if key not in ("architectures", "model_type")}
    model: Any = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**content)).eval().float()
    stored = SafetensorsFolder(folder)
    state = {name: stored.read(name).float() for name in stored.tensors if not name.startswith("mtp.")}
    model.load_state_dict(state, strict=False)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[0, -1]
    return torch.log_softmax(logits[: max(prompt) + 1], dim=-1)


def run(tokens: int) -> tuple[Answer, Answer, float]:
    """The answer to a prompt, the answer to the same prompt again, and the largest distance of the first token's
    likeliest log-probabilities from the reference. Raises `SystemExit` where they are not what they should be."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_tiny(Path(scratch) / "narrow", **NARROW)
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(7, 271, (tokens,), generator=generator).tolist()
        engine = LongPrompt(folder, tokens)
        first, again = engine.run(prompt), engine.run(prompt)
        engine.close()
        expected = reference(folder, prompt)
    off = float((expected.topk(len(first.top)).values - torch.tensor(first.top)).abs().max())
    if (again.text, again.top) != (first.text, first.top):
        raise SystemExit(f"the second answer differs: {first} and {again}")
    if again.cached_tokens < (tokens - 1) // PAGE * PAGE:
        raise SystemExit(f"only {again.cached_tokens} of {tokens} tokens were found again")
    if not off < TOLERANCE:
        raise SystemExit(f"a log-probability is {off} off the reference")
    return first, again, off


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.long_prompt", description=__doc__)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--report", type=Path, help="write what came out to this Markdown file")
    arguments = parser.parse_args()
    first, again, off = run(arguments.tokens)
    text = f"""# A prompt of {arguments.tokens:,} tokens

{datetime.now(UTC):%Y-%m-%d}. Made by `python -m benchmarks.engine.long_prompt --report docs/benchmarks/long-prompt.md`:
a narrow random hybrid of one Gated DeltaNet and one attention layer with a draft layer, float16 weights, on one CPU
thread of a machine with other work, through the whole engine.

| | first time | again |
| --- | --- | --- |
| seconds to the answer's {ANSWER_TOKENS} tokens | {first.seconds:.0f} | {again.seconds:.1f} |
| prompt tokens found by prefix | {first.cached_tokens} | {again.cached_tokens} |

Both answers and their log-probabilities are equal. The log-probabilities of the {len(first.top)} likeliest first tokens
are within {off:.1e} of `transformers`' on the same weights in float32 and one piece (allowed: {TOLERANCE:g}).
"""
    sys.stdout.write(text)
    if arguments.report:
        arguments.report.write_text(text)


if __name__ == "__main__":
    main()
