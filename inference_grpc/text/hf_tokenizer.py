"""The tokenizer and chat template of a Hugging Face folder, as the metadata of a GGUF file would give them.

The tokenizer's own JSON goes along under the key that GGUF has for it, so that nothing is lost where the metadata alone
would not describe it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from inference_grpc.text.tokenizer import CONTROL, USER_DEFINED, TokenizerError

HF_JSON: Final = "tokenizer.huggingface.json"
_NORMAL, _UNUSED = 1, 5
_NAMES: Final = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def read_hf_tokenizer(folder: Path) -> dict[str, Any]:  # metadata are free form
    """Raises `TokenizerError` naming the file."""
    source = _read(folder / "tokenizer.json")
    content = json.loads(source)
    model = content.get("model", {})
    if model.get("type") != "BPE":
        raise TokenizerError(f"{folder / 'tokenizer.json'}: the model is {model.get('type')!r}; supported is BPE.")
    texts, types = _tokens(model["vocab"], content.get("added_tokens", []))
    settings = json.loads(_read(folder / "tokenizer_config.json", default="{}"))
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama" if model.get("byte_fallback") else "gpt2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])],
        "tokenizer.ggml.add_bos_token": bool(settings.get("add_bos_token", False)),
        HF_JSON: source,
    }
    ids = {text: index for index, text in enumerate(texts)}
    for key, name in _NAMES.items():
        token = settings.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if text in ids:
            metadata[f"tokenizer.ggml.{name}_token_id"] = ids[text]
    declared = [_read_ids(folder / name) for name in ("generation_config.json", "config.json")]
    ends = [index for ends in declared for index in ends if index < len(texts)]
    for key, index in zip(("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"), ends, strict=False):
        metadata.setdefault(key, index)
    template = _template(folder, settings)
    return metadata | ({"tokenizer.chat_template": template} if template else {})


def _tokens(vocabulary: dict[str, int], added: list[dict[str, Any]]) -> tuple[list[str], list[int]]:
    size = max([*vocabulary.values(), *(token["id"] for token in added)]) + 1
    texts, types = [f"[unused{index}]" for index in range(size)], [_UNUSED] * size
    for text, index in vocabulary.items():
        texts[index], types[index] = text, _NORMAL
    for token in added:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token.get("special") else USER_DEFINED
    return texts, types


def _template(folder: Path, settings: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read(path)
    template = settings.get("chat_template") or ""
    if isinstance(template, list):  # several by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), "")
    return str(template)


def _read_ids(path: Path) -> list[int]:
    content = json.loads(_read(path, default="{}"))
    ids = content.get("eos_token_id", content.get("text_config", {}).get("eos_token_id"))
    return [ids] if isinstance(ids, int) else list(ids or [])


def _read(path: Path, default: str | None = None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        if default is not None:
            return default
        raise TokenizerError(f"{path}: cannot be read ({error.strerror}).") from error
