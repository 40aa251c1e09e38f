"""The engine's only face to the cache: it gives memory to sequences, takes it back, and finds prefixes again.

A model with recurrent state needs more than pages: a running sequence has a state slot, and a prefix can be gone on
from only where a state was kept for exactly its length. Two positions of a prompt are worth a state, each at a multiple
of `block_tokens`: its end, where a conversation goes on; and where it leaves a text that was met before, since others
will leave it there too (a shared system prompt gets its state when it is met the second time). The step that comes past
such a position writes the state there to a slot taken beforehand; the state is found once that step is done.

A sequence that must give its memory back leaves it in host memory where there is room, and goes on from there; else it
computes its tokens again. Kept states that give way to newer ones go to host memory too.

Where drafts are verified, a running sequence has a slot for the state after each of them too. The state
after a draft that proved right becomes the sequence's own by changing places with it, so nothing is computed again or
copied; what wrong drafts left in pages and slots is written over before anybody looks.

A cache may have two stages (`stale.py`): then `page_ids` names copies in FP8 and `three_bit_ids` those in three bits,
and a sequence gets FP8 pages as it comes to them instead of all at once. While it holds n pages, its rows may stand in
any of them: what a row of the last one reads in three bits is held in three bits.

What is to be copied is only noted here, in `moves`; the model does it at the beginning of its next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from inference_grpc.cache.host import HostMemory
from inference_grpc.cache.pages import PagePool
from inference_grpc.cache.prefix import PrefixIndex, page_hashes, root_hash
from inference_grpc.cache.stale import NOTHING, Footprint, StalePages, held
from inference_grpc.cache.state_slots import StateSlots
from inference_grpc.core.batch import Move
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import NO_PAGE, StagedPages


class CacheCoordinator:
    def __init__(
        self,
        *,
        pages: int,
        page_tokens: int,
        state_slots: int = 0,
        block_tokens: int = 1,
        host_pages: int = 0,
        host_states: int = 0,
        draft_tokens: int = 0,
        staged: StagedPages | None = None,
    ) -> None:
        """`state_slots`: 0 for a model without recurrent state. `block_tokens`: see `model/interface.py`.
        `draft_tokens`: drafts of one sequence that a step may verify. `staged`: the second stage, if there is one."""
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.stale = StalePages(staged)
        self.slots = StateSlots(state_slots)
        self.host = HostMemory(host_pages, host_states, staged.host_three_bit_pages if staged else 0)
        self._has_state = state_slots > 0
        self._draft_slots = draft_tokens if state_slots else 0
        self._block_tokens = lcm(block_tokens, page_tokens)
        self._index = PrefixIndex()
        self._moves: list[Move] = []
        self._later_moves: list[Move] = []  # of what the step to come will write

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def footprint(self, tokens: int, *, decodes: bool = False) -> Footprint:
        """What a sequence holds at most on its way to so many tokens."""
        return self.stale.footprint(self.pages_for(tokens), decodes=decodes)

    def owed(self, sequence: Sequence, tokens: int) -> Footprint:
        """What it will take beside what it holds on its way to so many tokens."""
        whole = self.footprint(tokens, decodes=sequence.remaining <= 1)
        given_back = max(sequence.fp8_from - self.stale.anchors, 0)
        three_bit = max(len(sequence.three_bit_ids) - self.stale.anchors, 0)
        return Footprint(max(whole.pages - len(sequence.page_ids) + given_back, 0), max(whole.three_bit - three_bit, 0))

    def reach(self, sequence: Sequence, budget: int) -> int:
        """The tokens that it has to hold pages for in a step of `budget` tokens: all that are known, where there is one
        stage."""
        return self.stale.reach(sequence.computed, len(sequence.token_ids), budget)

    def may_grow(self, sequences: int) -> bool:
        """Whether so many can take a page each, of either kind."""
        return self.pool.available >= sequences and (not self.stale.staged or self.stale.pool.available >= sequences)

    def take_moves(self) -> list[Move]:
        """What the next step has to copy, in order; they are its own from now on."""
        moves, self._moves, self._later_moves = self._moves, self._later_moves, []
        return moves

    def longest_prefix(self, sequence: Sequence) -> list[int]:
        """The leading full pages from which it can go on. The last token is never in them: it must be computed, since
        its logits are wanted."""
        found, _ = self._known_pages(sequence)
        return found[: self._resumable(sequence, found)]

    def admit(self, sequence: Sequence, *, reserve: Footprint = NOTHING, budget: int = 0) -> bool:
        """Give it a state slot and the pages of its known tokens, found ones first, and leave `reserve` pages. With two
        stages it gets those that it `reach`es with this budget, and what it will take later has to be there too.

        False, and nothing changed, if there is too little. Sets `computed` to what was found, `checkpoints` to where
        its states are to be kept, and at the first admission `cached_tokens` too.
        """
        if sequence.host_pages:
            return self._swap_in(sequence, reserve, budget)
        known, known_stale = self._known_pages(sequence)
        count = self._resumable(sequence, known)
        boundary = self.stale.boundary(count)
        found = known[:count]
        found[self.stale.anchors : boundary] = [NO_PAGE] * (boundary - self.stale.anchors)
        pages = self.pages_for(self.stale.reach(count * self.page_tokens, len(sequence.token_ids), budget))
        whole, shared = self.footprint(len(sequence.token_ids)), held(found)
        fresh, last_boundary = pages - count, self.stale.boundary(pages - 1)
        reused_cached = sum(1 for page_id in shared if self.pool.references(page_id) == 0)
        sequence.published = count
        if (
            max(fresh, whole.pages - len(shared)) + reserve.pages > self.pool.available - reused_cached
            or not self.stale.fits(known_stale[: min(count, last_boundary)], whole.three_bit + reserve.three_bit)
            or not self._has_slots()
        ):
            sequence.published = 0
            return False
        if self._has_state:
            self._give_slots(sequence, sequence.page_hashes[count - 1] if count else None)
            sequence.checkpoints = self._checkpoints(sequence, count, len(known))
        # Demotions come first: what they read may be a page that is taken right after, and written in the step only.
        self._moves += self.stale.demote(sequence, last_boundary, known)
        for page_id in shared:
            self.pool.share(page_id)
        sequence.page_ids = found + self._take_pages(fresh)
        sequence.fp8_from = boundary
        sequence.computed = count * self.page_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    def fork(self, parent: Sequence, child: Sequence, *, reserve: Footprint = NOTHING) -> bool:
        """Let `child`, a choice of the same prompt, go on from where this step brings `parent`: the end of the prompt.

        They share the full pages; the last, partly filled one and the state are copied, since both will write on.
        False, and nothing changed, if there is too little memory to do so and leave `reserve` pages.
        """
        tokens = parent.prompt_tokens
        full = tokens // self.page_tokens
        partial = self.pages_for(tokens) - full
        if partial + reserve.pages > self.pool.available or not self._has_slots():
            return False
        if reserve.three_bit > self.stale.pool.available:
            return False
        for page_id in held(parent.page_ids[:full]):
            self.pool.share(page_id)
        child.page_ids = parent.page_ids[:full]
        child.three_bit_ids, child.fp8_from = self.stale.share(parent.three_bit_ids[:full]), parent.fp8_from
        if partial:
            child.page_ids += self._take_pages(partial)
            self._later_moves.append(Move("page", parent.page_ids[full], child.page_ids[full]))
        if self._has_state:
            assert parent.state_slot is not None
            self._take_slots(child)
            assert child.state_slot is not None
            self._later_moves.append(Move("state", parent.state_slot, child.state_slot))
        child.page_hashes = list(parent.page_hashes)
        child.published = min(parent.published, full)
        child.computed = tokens
        self._let_go_of_stale(child)  # the parent read more of them in this step
        if child.cached_tokens is None:
            child.cached_tokens = tokens
        return True

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure it holds pages for its first `tokens` tokens; False, and nothing changed, if there are too few."""
        pages = self.pages_for(tokens)
        missing = pages - len(sequence.page_ids)
        if missing <= 0:
            return True
        boundary = self.stale.boundary(pages - 1)
        if missing > self.pool.available or not self.stale.has_room(sequence, boundary):
            return False
        self._moves += self.stale.demote(sequence, boundary, sequence.page_ids)
        sequence.page_ids += self._take_pages(missing)
        return True

    def shrink(self, sequence: Sequence, tokens: int) -> None:
        """Give back the pages behind its first `tokens` tokens, which hold nothing that counts, and the copies in three
        bits that only rows there would have read."""
        kept = self.pages_for(tokens)
        self.stale.shrink(sequence, self.stale.boundary(kept - 1))
        self.pool.release(reversed(sequence.page_ids[kept:]))
        del sequence.page_ids[kept:]

    def commit(self, sequence: Sequence, computed: int) -> None:
        """The first `computed` tokens are computed and final; pages that became full can be found."""
        before, sequence.computed = sequence.computed, computed
        if self.stale.staged and computed // self.page_tokens > before // self.page_tokens:
            self._let_go_of_stale(sequence)
        # Most of the time: no page became full, or what is generated cannot be found anyway.
        if computed < (sequence.published + 1) * self.page_tokens:
            return
        if self._has_state and before >= len(sequence.prompt_ids):
            return
        full = self._findable_tokens(sequence, computed) // self.page_tokens
        hashes = self._hashes(sequence, full)
        for number in range(sequence.published, full):
            page_id = sequence.page_ids[number]
            if page_id != NO_PAGE and self._index.add(hashes[number], page_id):
                self.pool.mark_findable(page_id)
        sequence.published = max(sequence.published, full)
        for position, slot in sequence.kept_slots.items():
            self._keep_state(hashes[position // self.page_tokens - 1], slot)
        sequence.kept_slots = {}

    def keep_states(self, sequence: Sequence, end: int) -> dict[int, int]:
        """Slots for the states that a step up to `end` comes past, by position; the last ones where there are few."""
        for position in reversed(sequence.checkpoints):
            if sequence.computed < position <= end and self.slots.available:
                digest = self._hashes(sequence, position // self.page_tokens)[-1]
                if self.slots.find(digest) is None and not self.host.has(digest):
                    sequence.kept_slots[position] = self._take_slot()
        return dict(sequence.kept_slots)

    def accept(self, sequence: Sequence, count: int) -> None:
        """The first `count` drafts of the step were the tokens that were drawn: what was computed for them is final
        too. Once a step, after `commit`."""
        drafts, at = sequence.draft_slots, count - 1
        if drafts:
            assert sequence.state_slot is not None
            sequence.state_slot, drafts[at] = drafts[at], sequence.state_slot
        self.commit(sequence, sequence.computed + count)

    def preempt(self, sequence: Sequence) -> bool:
        """Take its memory on the device. True: it will go on from host memory; False: by computing its tokens again."""
        # Pages that hold nothing yet need not be kept, nor what their rows would read.
        self.stale.shrink(sequence, self.stale.boundary(sequence.computed // self.page_tokens))
        full, stale = sequence.page_ids[: self.pages_for(sequence.computed)], sequence.three_bit_ids
        places = self.host.take_pages(len(held(full)), len(held(stale))) if full else None
        if places is None:
            self.release(sequence)
            return False
        state = self.host.take_state() if self._has_state else None
        if self._has_state and state is None:
            self.host.give_back(places[0], None, places[1])
            self.release(sequence)
            return False
        unused, unused_stale = iter(places[0]), iter(places[1])
        host_pages = [page_id if page_id == NO_PAGE else next(unused) for page_id in full]
        host_stale = [page_id if page_id == NO_PAGE else next(unused_stale) for page_id in stale]
        pairs = zip(held(full), places[0], strict=True)
        self._moves += [Move("page", page_id, place, "to_host") for page_id, place in pairs]
        pairs = zip(held(stale), places[1], strict=True)
        self._moves += [Move("three_bit", page_id, place, "to_host") for page_id, place in pairs]
        if state is not None:
            assert sequence.state_slot is not None
            self._moves.append(Move("state", sequence.state_slot, state, "to_host"))
        computed, checkpoints, fp8_from = sequence.computed, sequence.checkpoints, sequence.fp8_from
        self.release(sequence)
        sequence.computed, sequence.checkpoints, sequence.fp8_from = computed, checkpoints, fp8_from
        sequence.host_pages, sequence.host_three_bit, sequence.host_state = host_pages, host_stale, state
        return True

    def release(self, sequence: Sequence) -> None:
        """Give all its memory back. Repeating it changes nothing."""
        # The end of a text is the least likely to be met again: it goes first, so it is taken first.
        self.pool.release(reversed(held(sequence.page_ids)))
        self.stale.release(sequence)
        if sequence.state_slot is not None:
            for slot in _slots(sequence):
                self.slots.release(slot)
        self.host.give_back(held(sequence.host_pages), sequence.host_state, held(sequence.host_three_bit))
        sequence.page_ids, sequence.host_pages, sequence.host_three_bit, sequence.draft_slots = [], [], [], []
        sequence.state_slot = sequence.host_state = None
        sequence.checkpoints, sequence.kept_slots = [], {}
        sequence.published = sequence.computed = sequence.fp8_from = 0

    def forget_prefixes(self) -> None:
        """After a fault nothing that was computed before may be found again."""
        self._index.clear()
        self.pool.drop_cached()
        self.stale.forget_prefixes()
        self.slots.drop_kept()
        self.host.drop_spilled()

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Raises AssertionError unless free + held + cached = all, and the counts are those of the holders."""
        holders = list(holders)
        self.pool.check_integrity()
        self.slots.check_integrity([slot for s in holders if s.state_slot is not None for slot in _slots(s)])
        self.host.check_integrity(
            [place for s in holders for place in held(s.host_pages)],
            [s.host_state for s in holders if s.host_state is not None],
            [place for s in holders for place in held(s.host_three_bit)],
        )
        _check_counts("page", self.pool, [page_id for s in holders for page_id in held(s.page_ids)])
        self.stale.pool.check_integrity()
        stale = [page_id for s in holders for page_id in held(s.three_bit_ids)]
        _check_counts("three-bit page", self.stale.pool, stale)

    def _known_pages(self, sequence: Sequence) -> tuple[list[int], list[int]]:
        """Leading full pages that can be found: their FP8 copies and those in three bits, at least one of each."""
        found: list[int] = []
        stale: list[int] = []
        for digest in self._hashes(sequence, (len(sequence.token_ids) - 1) // self.page_tokens):
            page_id, stale_id = self._index.find(digest), self.stale.find(digest)
            if page_id is None and stale_id == NO_PAGE:
                break
            found.append(NO_PAGE if page_id is None else page_id)
            stale.append(stale_id)
        return found, stale

    def _resumable(self, sequence: Sequence, known: list[int]) -> int:
        """The most leading pages of those known after which it can go on: what is read in FP8 is there, and the state
        at their end is kept."""
        step = self._block_tokens // self.page_tokens if self._has_state else 1
        gaps = [page for page, page_id in enumerate(known) if page_id == NO_PAGE]
        for count in range(len(known) // step * step, 0, -step):
            digest = sequence.page_hashes[count - 1]
            has_state = not self._has_state or self.slots.keeps(digest) or self.host.has(digest)
            if has_state and self.stale.resumes(gaps, count):
                return count
        return 0

    def _checkpoints(self, sequence: Sequence, found: int, known: int) -> list[int]:
        block, prompt = self._block_tokens, sequence.prompt_tokens
        # An equal prompt can go on from before its last token only.
        ends = {prompt // block * block, (prompt - 1) // block * block, known * self.page_tokens // block * block}
        return sorted(end for end in ends if found * self.page_tokens < end <= prompt)

    def _findable_tokens(self, sequence: Sequence, computed: int) -> int:
        """With recurrent state, only what was computed in whole blocks of a prompt has bits that depend on nothing
        else; a text that was generated is computed again when it comes back in a prompt."""
        if not self._has_state:
            return computed
        return min(computed, sequence.prompt_tokens // self._block_tokens * self._block_tokens)

    def _swap_in(self, sequence: Sequence, reserve: Footprint, budget: int) -> bool:
        """Give it pages for what lies in host memory, and then for what it reaches, as `extend` does."""
        places, stale_places = sequence.host_pages, sequence.host_three_bit
        tokens = self.reach(sequence, budget)
        whole = self.footprint(len(sequence.token_ids), decodes=sequence.remaining <= 1)
        last_boundary = self.stale.boundary(self.pages_for(tokens) - 1)
        needed = len(held(places)) + self.pages_for(tokens) - len(places)
        stale_needed = len(held(stale_places)) + self.stale.missing(stale_places, last_boundary)
        if (
            max(needed, whole.pages) + reserve.pages > self.pool.available
            or max(stale_needed, whole.three_bit) + reserve.three_bit > self.stale.pool.available
            or not self._has_slots()
        ):
            return False
        fresh = iter(self._take_pages(len(held(places))))
        sequence.page_ids = [place if place == NO_PAGE else next(fresh) for place in places]
        kept = zip(held(places), held(sequence.page_ids), strict=True)
        self._moves += [Move("page", place, page_id, "from_host") for place, page_id in kept]
        self._moves += self.stale.restore(sequence, stale_places)
        if sequence.host_state is not None:
            self._take_slots(sequence)
            assert sequence.state_slot is not None
            self._moves.append(Move("state", sequence.host_state, sequence.state_slot, "from_host"))
        self.host.give_back(held(places), sequence.host_state, held(stale_places))
        sequence.host_pages, sequence.host_three_bit, sequence.host_state = [], [], None
        extended = self.extend(sequence, tokens)
        assert extended, "its pages were counted before"
        return True

    def _let_go_of_stale(self, sequence: Sequence) -> None:
        """Its FP8 copies that no query from `computed` on reads, nor one page earlier would have."""
        first = max(sequence.fp8_from, self.stale.anchors)
        last = min(self.stale.boundary(sequence.computed // self.page_tokens) - 1, len(sequence.three_bit_ids))
        if last > first:
            self.pool.release(sequence.page_ids[first:last])
            sequence.page_ids[first:last] = [NO_PAGE] * (last - first)
            sequence.fp8_from = last

    def _has_slots(self) -> bool:
        """Whether there are the slots that one more running sequence needs."""
        return not self._has_state or self.slots.available > self._draft_slots

    def _take_slots(self, sequence: Sequence) -> None:
        sequence.state_slot = self._take_slot()
        sequence.draft_slots = [self._take_slot() for _ in range(self._draft_slots)]

    def _give_slots(self, sequence: Sequence, start: bytes | None) -> None:
        """Slots of which the first begins with the state kept for the prefix `start`."""
        source = None if start is None else self.slots.find(start)
        spilled = self.host.borrow(start) if start is not None and source is None else None
        self._take_slots(sequence)
        assert sequence.state_slot is not None
        if start is not None and spilled is not None:
            self._moves.append(Move("state", spilled, sequence.state_slot, "from_host"))
            self.host.returned(start, spilled)
        elif source is not None and source != sequence.state_slot:  # it gets the kept state's own if there is no other
            self._moves.append(Move("state", source, sequence.state_slot))

    def _take_slot(self) -> int:
        self._make_slot_free()
        return self.slots.take()

    def _make_slot_free(self) -> None:
        gone = self.slots.make_room()
        if gone is None:
            return
        digest, slot = gone
        place = self.host.spill(digest)
        if place is not None:
            self._moves.append(Move("state", slot, place, "to_host"))

    def _keep_state(self, digest: bytes, slot: int) -> None:
        """Let a state be found that was just written; another sequence of the step may have kept the same one."""
        # A state whose pages another sequence made findable is as good: the text is the same.
        if self._index.find(digest) is None or self.slots.find(digest) is not None or self.host.has(digest):
            self.slots.release(slot)
        else:
            self.slots.keep(digest, slot)

    def _hashes(self, sequence: Sequence, pages: int) -> list[bytes]:
        """Of its first full pages, at least `pages` of them. Tokens are only appended, so they stay good."""
        hashes, size = sequence.page_hashes, self.page_tokens
        if len(hashes) < pages:
            parent = hashes[-1] if hashes else root_hash(sequence.tenant)
            hashes += page_hashes(parent, sequence.token_ids[len(hashes) * size : pages * size], size)
        return hashes[:pages]

    def _take_pages(self, count: int) -> list[int]:
        page_ids, were_cached = self.pool.take(count)
        for page_id in were_cached:
            digest = self._index.forget(page_id)
            self.slots.forget(digest)
            self.host.forget(digest)
        return page_ids


def _slots(sequence: Sequence) -> list[int]:
    """All that it holds while it runs."""
    assert sequence.state_slot is not None
    return [sequence.state_slot, *sequence.draft_slots, *sequence.kept_slots.values()]


def _check_counts(kind: str, pool: PagePool, page_ids: list[int]) -> None:
    counted = [0] * pool.total
    for page_id in page_ids:
        counted[page_id] += 1
    for page_id, count in enumerate(counted):
        if count != pool.references(page_id):
            raise AssertionError(
                f"{kind} {page_id} is in {count} block tables but counted {pool.references(page_id)} times"
            )
