"""Start-up of the torch engine: from a configuration to a backend that is ready to start."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.core.backend import BackendInfo
from inference_grpc.engine.backend import TorchBackend
from inference_grpc.engine.draft_gate import Room, why_not
from inference_grpc.engine.drafting import Drafter, DraftLayer, PromptLookup
from inference_grpc.engine.engine import Engine
from inference_grpc.engine.pools import Pools, pools_of, staging_of
from inference_grpc.engine.prepare import Preparer
from inference_grpc.engine.room import free_bytes, refusal, weights_refusal
from inference_grpc.engine.runner import Runner
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.model.cuda.load import DeviceMissing, find_device
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.interface import DeviceModel, DraftLayerModel, Model
from inference_grpc.model.load import Opened, load_model, load_on_gpu, open_checkpoint
from inference_grpc.model.load import weights_sha256 as hash_of
from inference_grpc.model.memory import KvFormat
from inference_grpc.model.packed_cache import PackedCache
from inference_grpc.model.recipe import AS_STORED, Recipe, read_recipe
from inference_grpc.model.resolve import ModelNotFound, resolve_model
from inference_grpc.text.chat_template import ChatTemplate
from inference_grpc.text.hf_tokenizer import read_hf_tokenizer
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
        opened = open_checkpoint(path)
        metadata = opened.file.metadata if opened.file is not None else read_hf_tokenizer(path)
        tokenizer = ModelTokenizer(metadata)
        recipe = _recipe(config, opened)
        staging = staging_of(config) if recipe.kv == "staged" else None
        if config.device == "cuda":
            find_device()
        if problem := weights_refusal(config, opened, recipe, free_bytes(config.device)):
            raise ConfigError(f"There is no memory for the weights of {name}: {problem}")
        if config.device == "cuda":
            invariant = config.batch_invariant == 1
            loaded = load_on_gpu(
                opened,
                name=name,
                vocabulary=tokenizer.vocabulary,
                recipe=recipe,
                invariant=invariant,
                staging=staging,
            )
        else:
            cache = PackedCache(config.packed_folder, config.packed_mib * 2**20) if config.packed_mib else None
            loaded = load_model(
                opened, name=name, vocabulary=tokenizer.vocabulary, recipe=recipe, cache=cache, staging=staging
            )
    except (ModelNotFound, ModelFileError, TokenizerError) as error:
        raise ConfigError(f"ENGINE_MODEL (--model) is {config.model!r}: {error}") from error
    except (MemoryError, torch.OutOfMemoryError) as error:  # others took it meanwhile, or it was in pieces
        raise ConfigError(
            f"There is no memory for the weights of {config.model!r}: they fitted into what was free at the start, and "
            f"then it ran out ({error}); make room, or use a narrower ENGINE_PRECISION (--precision)."
        ) from error
    except DeviceMissing as error:
        raise ConfigError(f"ENGINE_DEVICE (--device) is {config.device!r}: {error}") from error
    model = loaded.model
    if config.draft_tokens and not model.verifies_drafts:
        raise ConfigError(
            f"ENGINE_DRAFT_TOKENS (--draft-tokens) is {config.draft_tokens}: steps on {model.device} verify no drafts; "
            "leave it 0 there."
        )
    state_slots, pools = _state_slots(config, model), pools_of(config, model)
    host_states = config.swap_mib * 2**20 // 2 // model.state_bytes if model.state_bytes else 0
    _allocate(config, model, pools, state_slots, host_states)
    if isinstance(model, DeviceModel):
        model.warm_up(config.max_sequences)
    if not model.is_batch_invariant():
        logger.warning(
            "rows_depend_on_neighbours device=%s cpu=%s: texts may change with load",
            model.device,
            torch.backends.cpu.get_cpu_capability(),
        )
    drafter = _drafter(config, model, pools, state_slots)
    template = _chat_template(metadata, tokenizer)
    backend = assemble(
        config,
        model,
        tokenizer,
        template,
        weights_sha256=hash_of(path),
        pools=pools,
        state_slots=state_slots,
        host_states=host_states,
        drafter=drafter,
    )
    _log_cache(model, pools)
    logger.info(
        "engine_loaded model=%s device=%s precision=%s pages=%d three_bit_pages=%d kv_bytes_per_token=%d "
        "three_bit_bytes_per_token=%d state_bytes=%d state_slots=%d seconds=%.1f",
        name,
        model.device,
        model.precision,
        pools.pages,
        pools.three_bit_pages,
        model.page_token_bytes,
        model.three_bit_token_bytes if pools.staged else 0,
        model.state_bytes,
        state_slots,
        time.monotonic() - began,
    )
    return backend


def _recipe(config: EngineConfig, opened: Opened) -> Recipe:
    try:
        recipe = read_recipe(config.precision)
    except ModelFileError as error:
        raise ConfigError(f"ENGINE_PRECISION (--precision) is {config.precision!r}: {error}") from error
    if recipe is AS_STORED:
        recipe = replace(recipe, kv=opened.checkpoint.kv)
    return recipe if config.kv_cache == "auto" else replace(recipe, kv=cast(KvFormat, config.kv_cache))


def _state_slots(config: EngineConfig, model: Model) -> int:
    """One for each running sequence and each of its drafts, and what the budget allows for kept states, at least
    one."""
    if not model.state_bytes:
        return 0
    running = config.max_sequences * (1 + config.draft_tokens)
    return running + max(config.checkpoint_mib * 2**20 // model.state_bytes, 1)


def _log_cache(model: Model, pools: Pools) -> None:
    if pools.staged:
        rule = pools.staged.rule
        logger.info(
            "kv_cache_staged device=%s anchors=%d recent=%d page_tokens=%d",
            model.device,
            rule.anchors,
            rule.recent,
            rule.page_tokens,
        )


def _drafter(config: EngineConfig, model: Model, pools: Pools, state_slots: int) -> Drafter | None:
    """Who drafts; None where nobody is to, or where verifying drafts would change what is said."""
    if not config.draft_tokens:
        return None
    room = Room(pages=pools.pages, page_tokens=config.page_tokens, state_slots=state_slots, staged=pools.staged)
    reason = why_not(model, room, config.draft_tokens)
    if reason:
        logger.warning("drafting_off draft_tokens=%d: %s", config.draft_tokens, reason)
        return None
    drafter: Drafter = PromptLookup()
    if isinstance(model, DraftLayerModel) and model.has_draft_layer:
        drafter = DraftLayer(model)
    logger.info(
        "drafting_on drafter=%s draft_tokens=%d: logits of verified drafts have the bits of plain decoding",
        drafter.name,
        config.draft_tokens,
    )
    return drafter


def _allocate(config: EngineConfig, model: Model, pools: Pools, state_slots: int, host_states: int) -> None:
    free = free_bytes(config.device)
    if problem := refusal(config, model, pools, state_slots, free):
        raise ConfigError(f"There is no memory for the cache: {problem}")
    try:
        model.allocate(
            pages=pools.pages,
            page_tokens=config.page_tokens,
            state_slots=state_slots,
            host_pages=pools.host_pages,
            host_states=host_states,
            staged=pools.staged,
        )
    except ValueError as error:
        raise ConfigError(f"ENGINE_PAGE_TOKENS (--page-tokens): {error}") from error
    except (MemoryError, RuntimeError) as error:  # torch raises the latter when memory is short
        # What was free was not free in one piece, or somebody took it meanwhile.
        problem = refusal(config, model, pools, state_slots, (free_bytes(config.device) or 0) * 9 // 10) or str(error)
        raise ConfigError(f"There is no memory for the cache: {problem}") from error


def assemble(
    config: EngineConfig,
    model: Model,
    tokenizer: ModelTokenizer,
    template: ChatTemplate | None,
    *,
    weights_sha256: str = "",
    pools: Pools | None = None,
    state_slots: int = 0,
    host_states: int = 0,
    drafter: Drafter | None = None,
) -> TorchBackend:
    """Put the parts together around a model whose pages are allocated; `pools`: as they are, else `ENGINE_PAGES` of one
    kind."""
    draft_tokens = config.draft_tokens if drafter is not None else 0
    pools = pools or Pools(config.pages)
    context_tokens = min(model.context_tokens, pools.context_tokens(config.page_tokens))
    may_think = template is not None and template.may_think
    cache = CacheCoordinator(
        pages=pools.pages,
        page_tokens=config.page_tokens,
        state_slots=state_slots,
        block_tokens=model.block_tokens,
        host_pages=pools.host_pages,
        host_states=host_states,
        draft_tokens=draft_tokens,
        staged=pools.staged,
    )
    scheduler = Scheduler(
        cache,
        max_sequences=config.max_sequences,
        prefill_tokens=config.prefill_tokens,
        block_tokens=model.block_tokens,
        reserves_output=config.admission == "whole",
        draft_tokens=draft_tokens,
    )
    facts = BackendInfo(
        model=model.name,
        context_tokens=context_tokens,
        max_sequences=config.max_sequences,
        page_tokens=config.page_tokens,
        pages_total=pools.pages,
        three_bit_pages_total=pools.three_bit_pages,
        precision=model.precision,
        draft_head=f"{drafter.name}, {draft_tokens} tokens" if drafter is not None else "none",
        device=model.device,
        weights_sha256=weights_sha256,
        features=[*(["chat", "tools"] if template else []), *(["reasoning"] if may_think else []), *FEATURES],
    )
    return TorchBackend(
        Engine(Runner(model, drafter), cache, scheduler, queue_limit=config.queue_limit),
        Preparer(model=model.name, tokenizer=tokenizer, template=template, context_tokens=context_tokens),
        facts,
    )


def _chat_template(metadata: Mapping[str, Any], tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = metadata.get("tokenizer.chat_template")
    if not source:
        return None
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special_tokens = {
        name: tokenizer.special_text(metadata.get(f"tokenizer.ggml.{key}_token_id")) for name, key in names.items()
    }
    return ChatTemplate(source, special_tokens)
