"""Bytes of the staged KV cache, and how many contexts fit: the arithmetic behind every ratio that is quoted.

`python -m kernels.paged_attention.capacity` prints the table for 32K contexts in 86.4 GiB. Ratios are over the whole
attention KV pool at the stated mix of page ages; DeltaNet state is counted where resident contexts are.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from kernels.paged_attention.stage import Staging


@dataclass(frozen=True)
class Shape:
    """The attention layers and the recurrent state of one model."""

    layers: int = 16
    kv_heads: int = 4
    head_size: int = 256
    state_bytes: int = 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)  # DeltaNet: fp32 state and three bf16 inputs

    @property
    def vectors(self) -> int:
        """K and V vectors of one token."""
        return self.layers * 2 * self.kv_heads


def token_bytes(shape: Shape) -> dict[str, int]:
    """Bytes of one token's K and V: two bytes a value, one byte, or three bits and a float16 scale a vector."""
    values = shape.vectors * shape.head_size
    return {"bf16": values * 2, "fp8": values, "three_bit": values * 3 // 8 + shape.vectors * 2}


def staged_bytes(shape: Shape, staging: Staging, tokens: int) -> int:
    """Bytes of the pages of one sequence, whole pages and copies kept longer included."""
    per_token = token_bytes(shape)
    fp8 = staging.fp8_pages(tokens) * staging.page_tokens * per_token["fp8"]
    return fp8 + staging.three_bit_pages(tokens) * staging.page_tokens * per_token["three_bit"]


def resident(envelope: int, weights: int, kv: int, state: int) -> int:
    """How many sequences fit beside the weights."""
    return max(envelope - weights, 0) // (kv + state)


def report(shape: Shape, staging: Staging, tokens: int, envelope: int, weights: int, weights_fp8: int) -> str:
    per_token = token_bytes(shape)
    staged = staged_bytes(shape, staging, tokens)
    pages = -(-tokens // staging.page_tokens)
    fp8, three = staging.fp8_pages(tokens), staging.three_bit_pages(tokens)
    base = resident(envelope, weights_fp8, tokens * per_token["fp8"], shape.state_bytes)
    ours = resident(envelope, weights, staged, shape.state_bytes)
    return "\n".join(
        [
            f"{tokens} tokens, {pages} pages of {staging.page_tokens}: {fp8} in FP8 ({staging.anchors} anchors, "
            f"{staging.recent} recent), {three} in three bits; a page that has just gone stale is in both",
            f"attention KV of one context: BF16 {tokens * per_token['bf16']:,} B, FP8 {tokens * per_token['fp8']:,} B, "
            f"staged {staged:,} B",
            f"staged is {tokens * per_token['bf16'] / staged:.2f} times smaller than BF16, "
            f"{1 - staged / (tokens * per_token['fp8']):.1%} less than FP8",
            f"resident contexts in {envelope / 2**30:.1f} GiB, DeltaNet state included: FP8 {base}, ours {ours}: "
            f"{ours / max(base, 1):.2f} times",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--anchors", type=int, default=Staging.anchors)
    parser.add_argument("--recent", type=int, default=Staging.recent)
    parser.add_argument("--page-tokens", type=int, default=Staging.page_tokens)
    parser.add_argument("--envelope-gib", type=float, default=86.4)
    parser.add_argument("--weights-gb", type=float, default=17.0, help="NVFP4 trunk and head, BF16 embedding")
    parser.add_argument("--fp8-weights-gb", type=float, default=28.2, help="FP8 trunk and head, BF16 embedding")
    a = parser.parse_args(arguments)
    staging = Staging(page_tokens=a.page_tokens, anchors=a.anchors, recent=a.recent)
    envelope = int(a.envelope_gib * 2**30)
    sys.stdout.write(
        report(Shape(), staging, a.tokens, envelope, int(a.weights_gb * 1e9), int(a.fp8_weights_gb * 1e9)) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
