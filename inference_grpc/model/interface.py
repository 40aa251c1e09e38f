"""What the engine knows of a model. A second family (hybrid attention with recurrent state) comes in behind this face.

A model owns its device memory: `allocate` makes the pages once, `forward` reads and writes them by the page ids of the
block tables in a `Batch`. The engine never touches a tensor of the cache. A family with recurrent state allocates its
state slots in `allocate` too and finds each sequence's slot on the sequence, as it finds the block table there. It also
sets `block_tokens`: the scheduler ends chunks of prompts at multiples of it, and states are kept there only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from inference_grpc.core.batch import Batch
from inference_grpc.core.staged import StagedPages
from kernels.paged_attention.stage import Staging


class Model(Protocol):
    name: str
    vocabulary: int
    context_tokens: int
    precision: str
    device: str
    block_tokens: int  # 1: chunks may end anywhere
    verifies_drafts: bool  # whether `forward` takes chunks with drafts
    # The rule of its cache in two stages; None: one stage, whether that was asked for or two could not be had.
    staging: Staging | None

    @property
    def state_bytes(self) -> int:
        """Of one state slot; 0: the model has no recurrent state."""

    @property
    def page_token_bytes(self) -> int:
        """Of the keys and values of one token, over all layers; in FP8, where the cache has two stages."""

    @property
    def three_bit_token_bytes(self) -> int:
        """The same in three bits."""

    def allocate(
        self,
        *,
        pages: int,
        page_tokens: int,
        state_slots: int,
        host_pages: int = 0,
        host_states: int = 0,
        staged: StagedPages | None = None,
    ) -> None:
        """Make the paged memory and the slots, and places for some of them in host memory. Called once, before the
        first step. `staged`: the second pool, where `staging` says that there are two stages; then `pages` are those in
        FP8. Raises `ValueError` for a page size that does not fit."""

    def is_batch_invariant(self) -> bool:
        """Whether this machine's kernels keep rows apart; milliseconds, asked once at start."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """One step: does the moves, writes the keys and values of every chunk, brings states forward, keeps those that
        a chunk asks for, returns logits of the last row of each chunk that samples and of the rows of its drafts, in
        order.

        float32 [rows of `batch.ends`, vocabulary], free for the caller to change. A row's bits depend on its own
        sequence only: not on the neighbours, the chunk borders (at multiples of `block_tokens`), the page ids or
        whether it was a draft. The state after a chunk's n-th draft goes to its sequence's n-th draft slot.
        """

    def clear_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite pages that may hold values that are not finite, so that no later reader meets them."""


@runtime_checkable
class DraftLayerModel(Protocol):
    """What a model has beside that if it has a layer that drafts tokens."""

    has_draft_layer: bool  # whether its file had the weights

    def draft(self, batch: Batch) -> torch.Tensor:
        """Does the moves, and returns the draft layer's logits [chunks, vocabulary] of the token after the drafts that
        each chunk has so far. First asked without drafts, then with one more at a time.
        """


@runtime_checkable
class DeviceModel(Protocol):
    """What a model has beside that if it computes on a device of its own while the host does something else."""

    samples_on_device: bool  # by the kernel of kernels/sampling, whose gate has passed

    def warm_up(self, sequences: int) -> None:
        """Build what the first requests would wait for, for up to so many sequences. After `allocate`."""

    def run_ahead(self, batch: Batch, token_ids: torch.Tensor) -> None:
        """The step after `batch`, begun before the host knows the tokens that it drew, `token_ids` on the device.

        A row depends on its own sequence alone, so whatever the next batch turns out to be, a row of it that was
        computed ahead is taken from there; the others were in vain.
        """
