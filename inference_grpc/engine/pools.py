"""How many pages of each kind the settings ask for: one pool, or two where the cache has two stages."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Protocol

from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.core.staged import StagedPages, split_pages
from kernels.paged_attention.stage import Staging


class CacheCosts(Protocol):
    """What is asked of a model here; see `model/interface.py`."""

    @property
    def block_tokens(self) -> int: ...
    @property
    def staging(self) -> Staging | None: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def page_token_bytes(self) -> int: ...
    @property
    def three_bit_token_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Pools:
    pages: int  # in FP8, where there are two kinds
    staged: StagedPages | None = None
    host_pages: int = 0

    @property
    def three_bit_pages(self) -> int:
        return self.staged.three_bit_pages if self.staged else 0

    def page_bytes(self, model: CacheCosts, page_tokens: int) -> tuple[int, int]:
        """Of a page of either kind."""
        return page_tokens * model.page_token_bytes, page_tokens * model.three_bit_token_bytes if self.staged else 0

    def nbytes(self, model: CacheCosts, page_tokens: int) -> int:
        """Of all pages on the device. One of each kind more than can be held pads tables."""
        page, three_bit = self.page_bytes(model, page_tokens)
        return (self.pages + 1) * page + ((self.staged.three_bit_pages + 1) * three_bit if self.staged else 0)

    def context_tokens(self, page_tokens: int) -> int:
        """Of the longest text that fits alone, or it could never end."""
        return page_tokens * (self.staged.longest_pages(self.pages) if self.staged else self.pages)


def staging_of(config: EngineConfig) -> Staging:
    """The rule that the settings ask for. Raises `ConfigError`."""
    try:
        return Staging(config.page_tokens, config.kv_anchor_pages, config.kv_recent_pages)
    except ValueError as error:
        raise ConfigError(f"ENGINE_KV_CACHE (--kv-cache) is 'staged': {error}.") from error


def pools_of(config: EngineConfig, model: CacheCosts) -> Pools:
    """`ENGINE_PAGES` pages in one pool; or so many of context in two, such that `ENGINE_MAX_SEQUENCES` may share them
    in any way. Host memory is for both kinds in the same proportion. Raises `ConfigError`."""
    room, rule = config.swap_mib * 2**20, model.staging
    if model.state_bytes:  # the other half is for states
        room //= 2
    page, three_bit = config.page_tokens * model.page_token_bytes, config.page_tokens * model.three_bit_token_bytes
    if rule is None:
        return Pools(config.pages, host_pages=room // page)
    block = lcm(model.block_tokens, rule.page_tokens)
    if rule.recent * rule.page_tokens < block:
        raise ConfigError(
            f"ENGINE_KV_RECENT_PAGES (--kv-recent-pages) is {rule.recent}: so many pages of {rule.page_tokens} tokens "
            f"must hold the {block} that this model computes together; use at least {-(-block // rule.page_tokens)}."
        )
    step_tokens = max(config.prefill_tokens, model.block_tokens)
    pages, stale = split_pages(config.pages, config.max_sequences, rule, step_tokens)
    if stale < 1:
        window = rule.anchors + rule.recent
        raise ConfigError(
            f"ENGINE_PAGES (--pages) is {config.pages}: {config.max_sequences} sequences with {rule.anchors} anchors "
            f"and {rule.recent} recent pages each keep {config.max_sequences * window} pages in FP8, so none is left "
            "for three bits; use more pages, fewer ENGINE_MAX_SEQUENCES, or ENGINE_KV_CACHE=fp8."
        )
    share = room / (pages * page + stale * three_bit)
    staged = StagedPages(rule, stale, step_tokens, host_three_bit_pages=int(share * stale))
    return Pools(pages, staged, host_pages=int(share * pages))
