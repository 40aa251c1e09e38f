"""The reference: `transformers`' Llama on the float32 weights of a GGUF file. Tests and the benchmark share it."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from inference_grpc.model.config import LlamaConfig, read_config
from inference_grpc.model.gguf import GgufFile


def load_transformers(path: Path) -> transformers.LlamaForCausalLM:
    """Seconds instead of the half minute of its own GGUF loader, and without its extra dependency."""
    file = GgufFile(path)
    config = read_config(file)
    scaling = {"rope_type": "default", "rope_theta": config.rope_base}
    if config.rope.kind == "linear":
        scaling |= {"rope_type": "linear", "factor": config.rope.factor}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocabulary,
                hidden_size=config.hidden,
                intermediate_size=config.feed_forward,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_size,
                max_position_embeddings=config.context_tokens,
                rms_norm_eps=config.norm_epsilon,
                rope_parameters=scaling,
                tie_word_embeddings="output.weight" not in file.tensors,
            )
        )
    model.to_empty(device="cpu")
    model.load_state_dict(_state(file, config), strict=False)
    # Its rotation table is no weight: made anew, since the empty one holds nothing.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def _state(file: GgufFile, config: LlamaConfig) -> dict[str, torch.Tensor]:
    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(file.read(name, file.tensors[name].shape))

    def unpermuted(name: str) -> torch.Tensor:
        """A GGUF has the rows of a head in pairs, `transformers` in halves."""
        weight = tensor(name)
        pairs = weight.view(-1, config.head_size // 2, 2, weight.shape[1])
        return pairs.transpose(1, 2).reshape(weight.shape)

    state = {
        "model.embed_tokens.weight": tensor("token_embd.weight"),
        "model.norm.weight": tensor("output_norm.weight"),
        "lm_head.weight": tensor("output.weight" if "output.weight" in file.tensors else "token_embd.weight"),
    }
    for n in range(config.layers):
        ours, theirs = f"blk.{n}.", f"model.layers.{n}."
        state |= {
            f"{theirs}input_layernorm.weight": tensor(f"{ours}attn_norm.weight"),
            f"{theirs}post_attention_layernorm.weight": tensor(f"{ours}ffn_norm.weight"),
            f"{theirs}self_attn.q_proj.weight": unpermuted(f"{ours}attn_q.weight"),
            f"{theirs}self_attn.k_proj.weight": unpermuted(f"{ours}attn_k.weight"),
            f"{theirs}self_attn.v_proj.weight": tensor(f"{ours}attn_v.weight"),
            f"{theirs}self_attn.o_proj.weight": tensor(f"{ours}attn_output.weight"),
            f"{theirs}mlp.gate_proj.weight": tensor(f"{ours}ffn_gate.weight"),
            f"{theirs}mlp.up_proj.weight": tensor(f"{ours}ffn_up.weight"),
            f"{theirs}mlp.down_proj.weight": tensor(f"{ours}ffn_down.weight"),
        }
    return state
