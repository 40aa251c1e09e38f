"""A tiny model with random weights as a Hugging Face folder: for `--tiny-random`, trials of the tools, and tests.

It has everything a real folder has: configuration, weights with a draft layer, byte-level tokenizer, chat template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig, read_hf_config
from inference_grpc.model.safetensors import write_folder

FAMILIES: Final = ("qwen3_5", "llama")
SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
)
_CONTROL: Final = 3  # of them: the others are text that a reader may see
_MERGES: Final = [("h", "e"), ("l", "l"), ("Ġ", "t"), ("i", "n"), ("he", "ll"), ("Ġt", "he"), ("o", "n"), ("e", "r")]
# The pre-tokenizer of the family.
_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\n' }}"
    "{%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)


def tiny_config(family: str = "qwen3_5", **changes: Any) -> dict[str, Any]:
    """The content of config.json; `changes` replace or add keys."""
    common = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    if family == "llama":
        made = common | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}
        return made | {"rope_theta": 10_000.0} | changes
    if family != "qwen3_5":
        raise ValueError(f"family is {family!r}; known are {', '.join(FAMILIES)}")
    made = common | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": CONV_TAPS,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
    }
    return made | changes


def write_tiny(
    folder: Path,
    family: str = "qwen3_5",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    depth: float | None = None,
    **changes: Any,
) -> Path:
    """The folder, written; the same arguments give the same bytes. `depth`: see `let_drafts_agree`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = tiny_config(family, **changes)
    (folder / "config.json").write_text(
        json.dumps(content | {"torch_dtype": str(dtype).removeprefix("torch.")}, indent=1)
    )
    tensors = hybrid_tensors(content, seed) if family == "qwen3_5" else dense_tensors(content, seed)
    if depth is not None:
        let_drafts_agree(tensors, depth)
    write_folder(folder, ((name, values.to(dtype)) for name, values in tensors.items()))
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=1))
    return folder


def hybrid_tensors(content: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """float32, under Hugging Face names. Sizes of values are such that every part shows in the logits."""
    config = read_hf_config(Path("tiny"), content)
    make = _Random(seed)
    tensors = {"model.embed_tokens.weight": make.normal(config.vocabulary, config.hidden, std=1.0)}
    for n, kind in enumerate(config.layer_kinds):
        prefix = f"model.layers.{n}."
        mixer = _attention(config, make) if kind == "full_attention" else _delta_net(config, make)
        tensors |= {f"{prefix}{name}": values for name, values in (mixer | _block(config, make)).items()}
    tensors["model.norm.weight"] = make.centred(config.hidden)
    if not config.is_tied:
        tensors["lm_head.weight"] = make.normal(config.vocabulary, config.hidden)
    if config.mtp_layers:
        layer = _attention(config, make) | _block(config, make)
        tensors |= {f"mtp.layers.0.{name}": values for name, values in layer.items()}
        tensors["mtp.fc.weight"] = make.normal(config.hidden, 2 * config.hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{name}.weight"] = make.centred(config.hidden)
    return tensors


def let_drafts_agree(tensors: dict[str, torch.Tensor], depth: float) -> None:
    """Make the draft layer of a hybrid draft well, as a trained one does, by making the model easy to foretell.

    What its layers add is multiplied by `depth`, and the draft layer passes the embedding of the token on. At 0 the
    next token depends on the last one alone and each draft is right; the more depth, the fewer are.
    """
    for name in tensors:
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensors[name] *= depth
    hidden = tensors["mtp.norm.weight"].shape[0]
    tensors["mtp.fc.weight"] = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    tensors["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(hidden)
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].clone()


def dense_tensors(content: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    make = _Random(seed)
    hidden, inner, rows = content["hidden_size"], content["intermediate_size"], content["vocab_size"]
    queries = content["num_attention_heads"] * content["head_dim"]
    keys = content["num_key_value_heads"] * content["head_dim"]
    tensors = {"model.embed_tokens.weight": make.normal(rows, hidden, std=1.0)}
    for n in range(content["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        prefix = f"model.layers.{n}."
        tensors |= {f"{prefix}{name}.weight": make.normal(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = 1 + make.centred(hidden)
        if content["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{prefix}self_attn.{name}.weight"] = 1 + make.centred(content["head_dim"])
        if content["model_type"] == "qwen2":
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = make.normal(size, 1).flatten()
    tensors["model.norm.weight"] = 1 + make.centred(hidden)
    if not content["tie_word_embeddings"]:
        tensors["lm_head.weight"] = make.normal(rows, hidden)
    return tensors


class _Random:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, rows: int, columns: int, std: float | None = None) -> torch.Tensor:
        """By default of a size that keeps that of what goes through."""
        return torch.randn(rows, columns, generator=self._generator) * (columns**-0.5 if std is None else std)

    def centred(self, size: int) -> torch.Tensor:
        return self.uniform(size, -0.3, 0.3)

    def uniform(self, size: int, least: float, most: float) -> torch.Tensor:
        return torch.rand(size, generator=self._generator) * (most - least) + least


def _block(config: HybridConfig, make: _Random) -> dict[str, torch.Tensor]:
    return {
        "input_layernorm.weight": make.centred(config.hidden),
        "post_attention_layernorm.weight": make.centred(config.hidden),
        "mlp.gate_proj.weight": make.normal(config.feed_forward, config.hidden),
        "mlp.up_proj.weight": make.normal(config.feed_forward, config.hidden),
        "mlp.down_proj.weight": make.normal(config.hidden, config.feed_forward),
    }


def _attention(config: HybridConfig, make: _Random) -> dict[str, torch.Tensor]:
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    return {
        "self_attn.q_proj.weight": make.normal(2 * queries, config.hidden),
        "self_attn.k_proj.weight": make.normal(keys, config.hidden),
        "self_attn.v_proj.weight": make.normal(keys, config.hidden),
        "self_attn.o_proj.weight": make.normal(config.hidden, queries),
        "self_attn.q_norm.weight": make.centred(config.head_size),
        "self_attn.k_norm.weight": make.centred(config.head_size),
    }


def _delta_net(config: HybridConfig, make: _Random) -> dict[str, torch.Tensor]:
    return {
        "linear_attn.in_proj_qkv.weight": make.normal(config.conv_channels, config.hidden),
        "linear_attn.in_proj_z.weight": make.normal(config.value_channels, config.hidden),
        "linear_attn.in_proj_b.weight": make.normal(config.value_heads, config.hidden),
        "linear_attn.in_proj_a.weight": make.normal(config.value_heads, config.hidden),
        "linear_attn.conv1d.weight": make.normal(config.conv_channels, CONV_TAPS)[:, None],
        "linear_attn.A_log": make.uniform(config.value_heads, -4.0, 1.0),
        "linear_attn.dt_bias": make.uniform(config.value_heads, -1.0, 1.0),
        "linear_attn.norm.weight": make.uniform(config.value_size, 0.7, 1.3),
        "linear_attn.out_proj.weight": make.normal(config.hidden, config.value_channels),
    }


def tiny_tokenizer() -> Tokenizer:
    """Special tokens first, then the bytes, then some merges."""
    texts = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in _MERGES)]
    tokenizer = Tokenizer(BPE({text: index for index, text in enumerate(texts)}, list(_MERGES)))
    tokenizer.normalizer = normalizers.NFC()
    spaces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLIT), "isolated"), spaces])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(text, special=n < _CONTROL, normalized=False) for n, text in enumerate(SPECIAL_TOKENS)]
    )
    return tokenizer
