"""A model without numbers: it notes which text pages and slots hold, and checks what a batch assumes."""

from __future__ import annotations

from inference_grpc.core.batch import Batch, Chunk
from kernels.paged_attention.stage import Staging

# What was computed: the tenant is not part of it, since equal texts have equal keys and states.
Text = tuple[int, ...]


class ShadowModel:
    def __init__(self, *, page_tokens: int, has_state: bool, block_tokens: int, rule: Staging | None = None) -> None:
        """`rule`: of a cache in two stages."""
        self._rule = rule
        self._three_bit: dict[int, tuple[Text, ...]] = {}  # page: the texts up to each of its tokens
        self._host_three_bit: dict[int, tuple[Text, ...]] = {}
        self.read_three_bit = 0
        self._page_tokens = page_tokens
        self._has_state = has_state
        self._block_tokens = block_tokens
        self._places: dict[tuple[int, int], Text] = {}  # (page, place in it): the text up to that token
        # Slot: the text it has seen, and how much of that was computed in whole blocks of a prompt.
        self._states: dict[int, tuple[Text, int]] = {}
        self._host_places: dict[tuple[int, int], Text] = {}
        self._host_states: dict[int, tuple[Text, int]] = {}

    def forward(self, batch: Batch) -> None:
        for move in batch.moves:
            if move.kind == "page":
                source = self._host_places if move.way == "from_host" else self._places
                target = self._host_places if move.way == "to_host" else self._places
                for place in range(self._page_tokens):
                    target[move.target, place] = source.get((move.source, place), ())
            elif move.kind == "demotion":
                texts = tuple(self._places.get((move.source, place), ()) for place in range(self._page_tokens))
                assert all(texts), "a page is demoted before it is whole"
                self._three_bit[move.target] = texts
            elif move.kind == "three_bit":
                source_ = self._host_three_bit if move.way == "from_host" else self._three_bit
                (self._host_three_bit if move.way == "to_host" else self._three_bit)[move.target] = source_[move.source]
            else:
                states = self._host_states if move.way == "from_host" else self._states
                (self._host_states if move.way == "to_host" else self._states)[move.target] = states[move.source]
        slots = [
            slot
            for chunk in batch.chunks
            for slot in (chunk.sequence.state_slot, *chunk.sequence.draft_slots, *chunk.kept.values())
        ]
        assert not self._has_state or len(slots) == len(set(slots)), "two states share a slot"
        for chunk in batch.chunks:
            self._check_keys(chunk, chunk.start, chunk.start)
            if self._has_state:
                self._advance(chunk)
            for position in range(chunk.start, chunk.start + chunk.rows):
                place = self._place(chunk, position)
                self._places[place] = tuple(chunk.token_ids(0, position + 1))
        for chunk in batch.chunks:  # no chunk wrote over what another one needs
            for query in range(chunk.start, chunk.start + chunk.rows):
                if self._rule is not None or query == chunk.end - 1:
                    self._check_keys(chunk, min(query + 1, chunk.end), query)

    def _check_keys(self, chunk: Chunk, tokens: int, query: int) -> None:
        """The first tokens, where a query at `query` reads them."""
        for position in range(tokens):
            text, page = tuple(chunk.sequence.token_ids[: position + 1]), position // self._page_tokens
            if self._rule is None or self._rule.is_fp8(query, page):
                found = self._places[self._place(chunk, position)]
            else:
                found = self._three_bit[chunk.sequence.three_bit_ids[page]][position % self._page_tokens]
                self.read_three_bit += 1
            assert found == text, f"position {position} holds another text for a query at {query}"

    def _advance(self, chunk: Chunk) -> None:
        slot = chunk.sequence.state_slot
        assert slot is not None
        seen, in_blocks = self._states[slot] if chunk.start else ((), 0)
        assert seen == tuple(chunk.sequence.token_ids[: chunk.start]), "the state has seen another text"
        blocks_end = chunk.sequence.prompt_tokens // self._block_tokens * self._block_tokens
        assert in_blocks == min(chunk.start, blocks_end), "the state was not computed in the same blocks"
        assert chunk.end >= blocks_end or chunk.end % self._block_tokens == 0, "a chunk ends inside a block"
        self._states[slot] = tuple(chunk.sequence.token_ids[: chunk.end]), min(chunk.end, blocks_end)
        for position, kept_slot in chunk.kept.items():
            assert chunk.start < position <= min(chunk.end, blocks_end), "a state is kept that the step does not meet"
            assert position % self._block_tokens == 0, "a state is kept inside a block"
            self._states[kept_slot] = tuple(chunk.sequence.token_ids[:position]), position
        for number, draft_slot in enumerate(chunk.sequence.draft_slots[: len(chunk.drafts)], 1):
            self._states[draft_slot] = tuple(chunk.token_ids(0, chunk.end + number)), blocks_end

    def _place(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.sequence.page_ids[position // self._page_tokens], position % self._page_tokens
