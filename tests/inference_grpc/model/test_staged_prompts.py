"""Prompts over a cache in two stages, in the form of a GPU: what each row sees is what the rule of the kernels says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.batch import Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import NO_PAGE
from inference_grpc.model.cuda.spans import span_groups
from kernels.page_spans.reference import gather
from kernels.paged_attention.cache import PagePools, allocate, demote, write
from kernels.paged_attention.prefill import attend_masked
from kernels.paged_attention.reference import attend
from kernels.paged_attention.stage import Staging
from kernels.turboquant.reference import rotate, unrotate

PAGE, SIZE, KV_HEADS, HEADS = 16, 32, 2, 4
PAGES = 14
NAN_FP8, NAN_F16 = 0x7F, float("nan")


@pytest.fixture(scope="module")
def pools() -> PagePools:
    """Page n of a text in both forms: its FP8 copy in page n + 1, the other in page PAGES - n."""
    drawn = torch.randn(2, PAGES * PAGE, KV_HEADS, SIZE, generator=torch.Generator().manual_seed(5))
    made, places = allocate(PAGES + 1, PAGES + 1, KV_HEADS, PAGE, SIZE), torch.arange(PAGES * PAGE)
    write(made, drawn[0], drawn[1], places // PAGE + 1, places % PAGE)
    demote(made, torch.arange(1, PAGES + 1), torch.arange(PAGES, 0, -1))
    return made


def spoilt(pools: PagePools, fp8: set[int], three_bit: set[int]) -> PagePools:
    """Numbers that are not finite wherever the text holds no copy: one look there would show."""
    made = allocate(PAGES + 1, PAGES + 1, KV_HEADS, PAGE, SIZE)
    for source, target in ((pools.keys, made.keys), (pools.values, made.values)):
        for page in range(PAGES + 1):
            own = source.view(torch.uint8)[page]
            target.view(torch.uint8)[page] = own if page in fp8 else torch.full_like(own, NAN_FP8)
    for encoded, into in (
        (pools.three_bit_keys, made.three_bit_keys),
        (pools.three_bit_values, made.three_bit_values),
    ):
        for page in range(PAGES + 1):
            into.codes[page] = encoded.codes[page]
            into.scale[page] = encoded.scale[page] if page in three_bit else NAN_F16
    return made


@settings(deadline=None, max_examples=60)
@given(
    anchors=st.integers(0, 4),
    recent=st.integers(2, 5),
    start=st.integers(0, (PAGES - 1) * PAGE),
    count=st.integers(1, 5 * PAGE),
    found_behind=st.booleans(),
)
def test_every_row_of_a_chunk_sees_what_the_reference_sees(
    pools: PagePools, anchors: int, recent: int, start: int, count: int, found_behind: bool
) -> None:
    """Of any size from any place: on a page's border, within it, over several; after pages that were computed before
    or found, of which the stale ones may be there in three bits alone."""
    rule = Staging(PAGE, anchors, recent)
    end = min(
        start + count, PAGES * PAGE, (start // PAGE + recent) * PAGE
    )  # no chunk reads in three bits what it writes
    pages, last = -(-end // PAGE), (end - 1) // PAGE
    stale = [page for page in range(pages) if not rule.is_fp8(last * PAGE, page)]
    kept_longer = 0 if found_behind else 1
    boundary = max(start // PAGE - recent + 1 - kept_longer, anchors)
    gone = range(anchors, min(boundary, pages))
    sequence = Sequence(
        key=0, choice=0, prompt_ids=[1] * end, sampling=SamplingParams(), seed=0, max_tokens=1, computed=start
    )
    sequence.page_ids = [NO_PAGE if page in gone else page + 1 for page in range(pages)]
    if stale:
        sequence.three_bit_ids = [PAGES - page if page in stale else NO_PAGE for page in range(stale[-1] + 1)]
    held = spoilt(pools, set(sequence.page_ids), set(sequence.three_bit_ids))
    q = torch.randn(end - start, HEADS, SIZE, generator=torch.Generator().manual_seed(start * 100 + count))

    def table(page_ids: list[int]) -> torch.Tensor:
        return torch.tensor([[max(page_id, 0) for page_id in page_ids] or [0]])

    expected = attend(
        q[None], held, table(sequence.page_ids), table(sequence.three_bit_ids), torch.tensor([start]), rule
    )[0]
    assert expected.isfinite().all(), "the reference itself looks at a copy that is not held"
    # Behind another text in the step, and in groups as small as they can be.
    before = Sequence(key=1, choice=0, prompt_ids=[1] * 3, sampling=SamplingParams(), seed=0, max_tokens=1)
    before.page_ids = [0]
    chunks = [Chunk(before, 0, 3), Chunk(sequence, start, end - start)]
    for most_tokens in (1, 200, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("inference_grpc.model.cuda.spans.MOST_TOKENS", most_tokens)
            groups = span_groups(chunks, PAGE, rule, "cpu")
        pieces = [piece for group in groups for piece in group.pieces]
        assert [piece.rows.start for piece in pieces] == [0, *(piece.rows.stop for piece in pieces[:-1])]
        assert pieces[-1].rows.stop == 3 + end - start
        turned = torch.cat([torch.zeros(3, HEADS, SIZE), rotate(q)])
        parts = []
        for group in groups:
            assert group.tokens <= most_tokens or len(group.pieces) == 1
            assert group.q_starts.tolist() == [0, *(piece.rows.stop - group.rows.start for piece in group.pieces)]
            keys, values = gather(held, group.table, group.tokens, torch.float32)
            for piece, at in zip(group.pieces, group.key_starts.tolist(), strict=False):
                span = slice(at, at + piece.tokens)
                parts.append(attend_masked(turned[piece.rows], keys[span], values[span]))
        torch.testing.assert_close(unrotate(torch.cat(parts))[3:], expected, rtol=1e-4, atol=1e-5)
