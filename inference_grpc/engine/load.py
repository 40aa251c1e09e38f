"""Start-up of the torch engine: from a configuration to a backend that is ready to start."""

from __future__ import annotations

import logging
import time

import torch

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.core.backend import BackendInfo
from inference_grpc.engine.backend import TorchBackend
from inference_grpc.engine.engine import Engine
from inference_grpc.engine.prepare import Preparer
from inference_grpc.engine.runner import Runner
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.interface import Model
from inference_grpc.model.llama import load_llama
from inference_grpc.model.resolve import ModelNotFound, resolve_model
from inference_grpc.text.chat_template import ChatTemplate
from inference_grpc.text.tokenizer import ModelTokenizer, TokenizerError

# Of every model; a chat template adds to them.
FEATURES = ("text", "tokens", "logprobs", "json_schema", "regex", "grammar")

logger = logging.getLogger(__name__)


def load(config: EngineConfig) -> TorchBackend:
    """Raises `ConfigError` for a model that is missing, damaged or not supported, or settings that do not fit it."""
    began = time.monotonic()
    torch.set_num_threads(config.threads)
    try:
        name, path = resolve_model(config.model)
        model, file = load_llama(path, name=name, precision="float16")
        tokenizer = ModelTokenizer(file.metadata)
    except (ModelNotFound, GgufError, TokenizerError) as error:
        raise ConfigError(f"ENGINE_MODEL (--model) is {config.model!r}: {error}") from error
    try:
        model.allocate(pages=config.pages, page_tokens=config.page_tokens)
    except ValueError as error:
        raise ConfigError(f"ENGINE_PAGE_TOKENS (--page-tokens): {error}") from error
    if not model.is_batch_invariant():
        logger.warning(
            "rows_depend_on_neighbours cpu=%s: texts may change with load", torch.backends.cpu.get_cpu_capability()
        )
    backend = assemble(config, model, tokenizer, _chat_template(file, tokenizer), weights_sha256=file.sha256())
    logger.info("engine_loaded model=%s precision=%s seconds=%.1f", name, model.precision, time.monotonic() - began)
    return backend


def assemble(
    config: EngineConfig,
    model: Model,
    tokenizer: ModelTokenizer,
    template: ChatTemplate | None,
    *,
    weights_sha256: str = "",
) -> TorchBackend:
    """Put the parts together around a model whose pages are allocated."""
    # A sequence must fit the pages alone, or it could never end.
    context_tokens = min(model.context_tokens, config.pages * config.page_tokens)
    may_think = template is not None and template.may_think
    cache = CacheCoordinator(pages=config.pages, page_tokens=config.page_tokens)
    scheduler = Scheduler(cache, max_sequences=config.max_sequences, prefill_tokens=config.prefill_tokens)
    facts = BackendInfo(
        model=model.name,
        context_tokens=context_tokens,
        max_sequences=config.max_sequences,
        page_tokens=config.page_tokens,
        pages_total=config.pages,
        precision=model.precision,
        device=model.device,
        weights_sha256=weights_sha256,
        features=[*(["chat", "tools"] if template else []), *(["reasoning"] if may_think else []), *FEATURES],
    )
    return TorchBackend(
        Engine(Runner(model), cache, scheduler, queue_limit=config.queue_limit),
        Preparer(model=model.name, tokenizer=tokenizer, template=template, context_tokens=context_tokens),
        facts,
    )


def _chat_template(file: GgufFile, tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = file.metadata.get("tokenizer.chat_template")
    if not source:
        return None
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special_tokens = {
        name: tokenizer.special_text(file.metadata.get(f"tokenizer.ggml.{key}_token_id")) for name, key in names.items()
    }
    return ChatTemplate(source, special_tokens)
