"""Compares llguidance with xgrammar: which keywords they enforce, how long a grammar and a mask take.

    python -m benchmarks.constrained [--xgrammar FOLDER] [--report docs/benchmarks/constrained.md]

Times are CPU time of this thread, so that other work on the machine moves them little.

The peer is not among our dependencies (it needs torch and transformers to be imported); get it apart with
`uv pip install --no-deps --target FOLDER xgrammar apache-tvm-ffi`. Without it only llguidance is measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.constrained.cases import CASES, TIMED
from benchmarks.constrained.libraries import Library, Llguidance, Unsupported, Xgrammar
from inference_grpc.model.gguf import GgufFile
from inference_grpc.model.resolve import resolve_model
from inference_grpc.text.output_parser.values import encode
from inference_grpc.text.tokenizer import ModelTokenizer

LARGE_VOCABULARY = 248_320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xgrammar", metavar="FOLDER", help="folder that xgrammar was installed into")
    parser.add_argument("--report", type=Path, help="write the tables to this Markdown file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = ModelTokenizer(GgufFile(resolve_model("smollm2-135m-instruct")[1]).metadata)
    kinds: list[type] = [Llguidance]
    if arguments.xgrammar:
        sys.path.insert(0, arguments.xgrammar)
        kinds.append(Xgrammar)
    lines = [
        "# Constrained decoding: llguidance and xgrammar",
        "",
        f"{platform.machine()}, Python {platform.python_version()}, one thread, CPU time. SmolLM2's ids, and the "
        "same with made tokens on top. Masks are taken before each token of an instance, three times over.",
        *tables(tokenizer, kinds),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(text)


def tables(tokenizer: ModelTokenizer, kinds: list[type]) -> Iterator[str]:
    eos_ids = sorted(tokenizer.eos_ids)
    small = tokenizer.to_json()
    for vocab_size, tokenizer_json in (
        (tokenizer.vocabulary, small),
        (LARGE_VOCABULARY, enlarged(small, LARGE_VOCABULARY)),
    ):
        yield f"\n## Vocabulary of {vocab_size:,}\n"
        yield "| schema | library | compile ms | matcher µs | mask µs median | p99 | max |"
        yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
        for kind in kinds:
            began = time.thread_time()
            library = kind(tokenizer_json, vocab_size, eos_ids)
            yield f"| *set-up, once a model* | {kind.name} | {(time.thread_time() - began) * 1e3:.0f} | | | | |"
            yield from time_schemas(library, tokenizer, vocab_size)
    libraries = [kind(small, tokenizer.vocabulary, eos_ids) for kind in kinds]
    verdicts = [[verdict(library, tokenizer, case) for case in CASES] for library in libraries]
    yield "\n## Keywords\n"
    yield "| keyword | " + " | ".join(kind.name for kind in kinds) + " |"
    yield "| --- |" + " --- |" * len(kinds)
    for row, (keyword, *_) in enumerate(CASES):
        yield f"| {keyword} | " + " | ".join(column[row] for column in verdicts) + " |"
    for kind, column in zip(kinds, verdicts, strict=True):
        yield f"\n{kind.name}: " + ", ".join(f"{count} {name}" for name, count in Counter(column).most_common())


def time_schemas(library: Library, tokenizer: ModelTokenizer, vocab_size: int) -> Iterator[str]:
    row = torch.empty((vocab_size + 31) // 32, dtype=torch.int32)
    for name, schema, value in TIMED:
        compile_ms = min(timed(lambda schema=schema: library.compile(schema)) for _ in range(3)) * 1e3
        compiled = library.compile(schema)
        matcher_us = min(timed(lambda compiled=compiled: library.follow(compiled)) for _ in range(5)) * 1e6
        tokens = tokenizer.encode(json.dumps(value))
        masks: list[float] = []
        for _ in range(3):
            follower = library.follow(compiled)
            for token in tokens:
                masks.append(timed(lambda follower=follower: follower.fill(row)) * 1e6)
                if not follower.accept(token):
                    raise SystemExit(f"{library.name} refuses a valid instance of {name!r}")
        masks.sort()
        p99 = masks[int(len(masks) * 0.99)]
        yield (
            f"| {name} | {library.name} | {compile_ms:.2f} | {matcher_us:.0f} "
            f"| {statistics.median(masks):.0f} | {p99:.0f} | {masks[-1]:.0f} |"
        )


def verdict(library: Library, tokenizer: ModelTokenizer, case: tuple[str, dict, object, object]) -> str:
    _, schema, valid, invalid = case
    try:
        compiled = library.compile(schema)
    except Unsupported:
        return "refused"
    if not admits(library, tokenizer, compiled, valid):
        return "**rejects valid**"
    return "**ignored**" if admits(library, tokenizer, compiled, invalid) else "enforced"


def admits(library: Library, tokenizer: ModelTokenizer, compiled: object, value: object) -> bool:
    """Whether the value is admitted in one of the two usual spellings."""
    return any(follows(library, tokenizer.encode(text), compiled) for text in (json.dumps(value), encode(value)))


def follows(library: Library, tokens: list[int], compiled: object) -> bool:
    follower = library.follow(compiled)
    return all(follower.accept(token) for token in tokens) and follower.may_end()


def enlarged(tokenizer_json: str, size: int) -> str:
    """The same tokenizer with made tokens on top: each joins two real ones, as merges do."""
    described = json.loads(tokenizer_json)
    vocab: dict[str, int] = described["model"]["vocab"]
    texts = [text for text in vocab if not text.startswith("<")]
    step = 0
    while len(vocab) < size:
        first, second = texts[step % len(texts)], texts[(step * 7919 + step // len(texts)) % len(texts)]
        vocab.setdefault(first + second, len(vocab))
        step += 1
    return json.dumps(described)


def timed(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return time.thread_time() - began


if __name__ == "__main__":
    main()
