"""What goes into each matrix when a model reads a text: the static scales of activations that `quantize` writes."""

from __future__ import annotations

from collections.abc import Sequence as Matrices
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Fp8, Matrix, Nvfp4
from inference_grpc.model.load import load_observed, open_checkpoint
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
from inference_grpc.text.tokenizer import ModelTokenizer
from inference_grpc.tools.progress import Progress
from kernels.fp8.reference import MAX as FP8_LARGEST
from kernels.nvfp4.format import LARGEST as NVFP4_LARGEST

PAGE: Final = 64
CHUNK: Final = 512
MOST_TOKENS: Final = 16_384


def calibrate(source: Path, text: Path, progress: Progress) -> dict[str, float]:
    """By matrix, the largest magnitude of its inputs over the text, of which the first 16,384 tokens are read.

    The model runs as it is stored. Raises `ModelFileError`.
    """
    try:
        content = text.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{text}: cannot be read as text ({error}).") from error
    tokenizer = ModelTokenizer(read_hf_tokenizer(source))
    tokens = tokenizer.encode(content)[:MOST_TOKENS]
    if not tokens:
        raise ModelFileError(f"{text}: the calibration text is empty.")
    largest: dict[str, float] = {}

    def observe(names: Matrices[str], x: torch.Tensor) -> None:
        most = float(x.abs().max()) if x.numel() else 0.0
        for name in names:
            largest[name] = max(largest.get(name, 0.0), most)

    model = load_observed(open_checkpoint(source), vocabulary=tokenizer.vocabulary, observe=observe)
    pages = -(-len(tokens) // PAGE)
    model.allocate(pages=pages, page_tokens=PAGE, state_slots=1)
    sequence = Sequence(key=0, choice=0, prompt_ids=tokens, sampling=SamplingParams(), seed=0, max_tokens=1)
    sequence.page_ids, sequence.state_slot = list(range(pages)), 0
    for start in range(0, len(tokens), CHUNK):
        count = min(CHUNK, len(tokens) - start)
        model.forward(Batch([Chunk(sequence, start, count)]))
        progress.step(start + count, len(tokens), "calibration tokens")
    return largest


def with_input_scale(matrix: Matrix, largest: float | None) -> Matrix:
    """The matrix with a static scale for inputs of that magnitude; unchanged where nothing came in, or none fits."""
    if not largest:
        return matrix
    if isinstance(matrix, Nvfp4):
        return Nvfp4(replace(matrix.matrix, input_multiplier=largest / NVFP4_LARGEST))
    if isinstance(matrix, Fp8):
        return replace(matrix, input_scale=largest / FP8_LARGEST)
    return matrix
