"""Tiny hybrids for tests: ours and `transformers`' on the same weights, and sequences laid out on pages and slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.hybrid import HybridModel
from inference_grpc.model.hybrid_config import read_hf_config
from inference_grpc.model.hybrid_weights import load_hybrid_weights
from inference_grpc.model.linear import Numerics
from inference_grpc.model.safetensors import SafetensorsFolder

PAGE = 16
SLOTS = 12


def load_hybrid(folder: Path, numerics: Numerics | None = None, **options: Any) -> HybridModel:
    checkpoint = HfCheckpoint(folder)
    config = read_hf_config(folder / "config.json", checkpoint.config)
    weights = load_hybrid_weights(checkpoint, config, numerics or Numerics("float32"))
    model = HybridModel("tiny", config, weights, precision="float32", **options)
    model.allocate(pages=260, page_tokens=PAGE, state_slots=SLOTS)
    return model


def transformers_hybrid(folder: Path) -> Any:
    """The reference on the same weights; its `model` gives hidden states after the final norm."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    content = HfCheckpoint(folder).config
    fields = {key: value for key, value in content.items() if key not in ("architectures", "model_type")}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields)).eval().float()
    stored = SafetensorsFolder(folder)
    state = {name: stored.read(name).float() for name in stored.tensors if not name.startswith("mtp.")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def reference_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def make_sequence(token_ids: list[int], *, first_page: int = 0, slot: int = 0, prompt: int | None = None) -> Sequence:
    """`prompt`: how many of the tokens are the prompt; the rest counts as generated."""
    prompt_ids = token_ids[: len(token_ids) if prompt is None else prompt]
    sequence = Sequence(key=0, choice=0, prompt_ids=prompt_ids, sampling=SamplingParams(), seed=0, max_tokens=1)
    sequence.token_ids = list(token_ids)
    # Page ids out of order, as they are in use.
    sequence.page_ids = [first_page + page for page in range(-(-len(token_ids) // PAGE) - 1, -1, -1)]
    sequence.state_slot = slot
    return sequence


def in_chunks(model: HybridModel, sequence: Sequence, sizes: list[int]) -> torch.Tensor:
    """Logits of the last token, computed in chunks of these sizes and the rest."""
    start, total = 0, len(sequence.token_ids)
    for size in [*sizes, total]:
        count = min(size, total - start)
        if count:
            logits = model.forward(Batch([Chunk(sequence, start, count)]))
            start += count
    return logits[0]


def token_by_token(model: HybridModel, token_ids: list[int]) -> torch.Tensor:
    """Logits after each token."""
    sequence = make_sequence(token_ids)
    rows = []
    for end in range(1, len(token_ids) + 1):
        sequence.token_ids = token_ids[:end]
        rows.append(model.forward(Batch([Chunk(sequence, end - 1, 1)]))[0])
    return torch.stack(rows)
