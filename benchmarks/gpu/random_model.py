"""The 27B model with random weights behind the engine's own interface, and a tokenizer with all of its tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from tokenizers import pre_tokenizers

from inference_grpc.model.cuda.load import device_gates
from inference_grpc.model.cuda.matrices import DeviceMatrix, Workspace
from inference_grpc.model.cuda.model import CudaHybridModel, misfit
from inference_grpc.model.cuda.weights import AttentionMatrices, DeltaMatrices, DeviceWeights, LayerMatrices
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.text.tokenizer import CONTROL, ModelTokenizer
from inference_grpc.tools.capacity import MODEL_27B
from kernels.benchmarks.random_trunk import VOCABULARY_27B, random_trunk
from kernels.dispatch import capability
from kernels.hybrid_step import DeltaLayer, Kind, StepMatrix
from kernels.paged_attention.stage import Staging
from kernels.paths import choose
from kernels.tuning import read_splits

LAYERS = 64


def config_27b(layers: int = LAYERS, context_tokens: int = MODEL_27B.context_tokens) -> HybridConfig:
    return replace(
        MODEL_27B,
        layer_kinds=MODEL_27B.layer_kinds[:layers],
        context_tokens=context_tokens,
        rope=replace(MODEL_27B.rope, context_tokens=context_tokens),
    )


def random_model(
    kind: Kind, *, layers: int = LAYERS, invariant: bool = False, staging: Staging | None = None
) -> CudaHybridModel:
    """`staging`: of a cache in two stages, else it is FP8. Raises RuntimeError unless every way of the table is on: a
    figure must say what it is of."""
    device = torch.device("cuda", 0)
    config, gates = config_27b(layers), device_gates(device)
    kinds = {kind, "three_bit"} if staging else {kind}
    ways = choose(capability(device), kinds, lambda gate: gate in gates, misfit=misfit(config))
    if "graphs" not in ways or (staging and "staged" not in ways):
        raise RuntimeError("ways are off here:\n" + "\n".join(ways.lines))
    trunk, _ = random_trunk(kind, layers=layers)
    workspace = Workspace()

    def held(matrix: StepMatrix, outputs: int | None = None) -> DeviceMatrix:
        return DeviceMatrix(matrix, outputs or matrix.rows, True, invariant, workspace)

    matrices = []
    for layer in trunk.layers:
        mixer = layer.mixer
        if isinstance(mixer, DeltaLayer):
            inputs = config.conv_channels + config.value_channels + 2 * config.value_heads
            mixed = DeltaMatrices(held(mixer.inward, inputs), None, held(mixer.outward))
            matrices.append(LayerMatrices(mixed, held(layer.gate_up), held(layer.down)))
        else:
            attention = AttentionMatrices(held(mixer.inward), held(mixer.outward))
            matrices.append(LayerMatrices(attention, held(layer.gate_up), held(layer.down)))
    weights = DeviceWeights(trunk, matrices, held(trunk.head))
    return CudaHybridModel(
        f"random-27b-{kind}",
        config,
        weights,
        ways,
        precision=kind,
        vocabulary=VOCABULARY_27B,
        kv_format="staged" if staging else "fp8",
        invariant=invariant,
        splits=read_splits(gates.key),
        staging=staging,
    )


def full_tokenizer(size: int = VOCABULARY_27B) -> ModelTokenizer:
    """Bytes and made-up words of a few letters, as many as the head has rows, so that any id becomes text."""
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    texts += [f"Ġw{number:x}" for number in range(size - len(texts))]
    return ModelTokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": [CONTROL] * 3 + [1] * (size - 3),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
