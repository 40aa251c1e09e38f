"""From the results of the parts to one page: each figure beside its physical limit, and the bars, reached or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernels.benchmarks.shapes import LAYERS, PRODUCTS, STATE_BYTES, weight_bytes, weight_flops
from kernels.hybrid_step import MOST_ROWS

KINDS = ("nvfp4", "fp8", "bf16")
KV_TOKEN = {"nvfp4": 32768, "fp8": 32768, "bf16": 32768}  # all recipes of the benchmark keep keys and values in FP8
EMBEDDING = 248_320 * 5120 * 2
# Bandwidth, and the densest product that the weights' kind may use there. Data sheets, not measured by us.
OTHERS = {
    "RTX PRO 6000 Blackwell": (1.79e12, {"nvfp4": 2.0e15, "fp8": 1.0e15, "bf16": 0.5e15}),
    "B200": (8.0e12, {"nvfp4": 9.0e15, "fp8": 4.5e15, "bf16": 2.25e15}),
}


def read(results: Path, name: str) -> Any:
    path = results / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def step_bytes(kind: str, batch: int, context: int) -> float:
    """Weights once, states read and written, keys and values once."""
    return weight_bytes(kind) + batch * (STATE_BYTES * 2 + (context + 1) * KV_TOKEN[kind])


def calculated() -> list[str]:
    """The limits of a step on chips that we have not run on: the larger of bytes and operations."""
    lines = [
        "| chip (computed) | weights | batch 1 tok/s | batch 8 | batch 32 | batch 128 | 8 at 32K |",
        "|---|---|---|---|---|---|---|",
    ]
    for chip, (bandwidth, flops) in OTHERS.items():
        for kind in KINDS:
            cells = []
            for batch, context in ((1, 640), (8, 640), (32, 640), (128, 640), (8, 32768)):
                seconds = max(step_bytes(kind, batch, context) / bandwidth, weight_flops(batch) / flops[kind])
                cells.append(f"{batch / seconds:.0f}")
            lines.append(f"| {chip} (computed) | {kind} | " + " | ".join(cells) + " |")
    return lines


def best_case(results: Path, kind: str, concurrency: int) -> dict[str, Any] | None:
    """The fastest of the cases of 512 tokens in and the most out."""
    cases = ((read(results, f"engine-{kind}") or {}).get("client") or {}).get("cases", [])
    fitting = [case for case in cases if case["concurrency"] == concurrency and case["tokens"] > 1]
    return max(fitting, key=lambda case: case["decode_tokens_per_s"], default=None)


def section_rows(results: Path, part: str) -> list[list[str]]:
    """The cells of the table of single kernels whose title has the part."""
    sections = (read(results, "sections") or {}).get("sections", {})
    lines = next((lines for title, lines in sections.items() if part in title), [])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:3] not in ("|--", "fai")][
        1:
    ]


def bar_rows(results: Path, copy: float, matmul: float) -> list[str]:
    """What was asked for and what was reached; a bar without a figure was not measured."""
    lines = ["| bar | reached | |", "|---|---|---|"]

    def add(bar: str, said: str, is_reached: bool | None) -> None:
        lines.append(f"| {bar} | {said} | {'–' if is_reached is None else 'yes' if is_reached else '**no**'} |")

    steps = {(row["kind"], row["batch"]): row for row in read(results, "steps") or []}
    nvfp4, fp8 = best_case(results, "nvfp4", 8), best_case(results, "fp8", 8)
    if nvfp4 is not None and fp8 is not None:
        ours, theirs = nvfp4["decode_tokens_per_s"], fp8["decode_tokens_per_s"]
        ratio = ours / theirs
        add("batch 8, 512 in, 256 out, end to end: NVFP4 ≥ 1.45 x our FP8", f"{ratio:.2f}", ratio >= 1.45)
        add("NVFP4 ≥ 1,500 tok/s at batch 8, end to end", f"{ours:.0f}", ours >= 1500)
        bare = 8e6 / read(results, "engine-nvfp4")["bare_us"]["8"]
        add("end to end ≥ 95 % of the bare step", f"{ours / bare:.1%}", ours >= 0.95 * bare)
        peer = read(results, "peer")
        if peer is not None:
            times = ours / peer["tokens_per_s"]
            add("≥ 10 x `transformers` eager in bf16", f"{times:.0f} x", times >= 10)
    library = {row["scales"]: row["us"] for row in read(results, "library") or [] if row["batch"] == 8}
    if {"row", "one"} <= library.keys() and ("nvfp4", 8) in steps:
        by_row, by_one = (library[scales] / steps["nvfp4", 8]["us"] for scales in ("row", "one"))
        said = f"{by_row:.2f} x by row, {by_one:.2f} x with one multiplier, known beforehand"
        add("step of batch 8 ≥ 1.6 x FP8 through torch's library kernels", said, min(by_row, by_one) >= 1.6)
    if ("fp8", 8) in steps:
        share = step_bytes("fp8", 8, 640) / copy * 1e6 / steps["fp8", 8]["us"]
        add("FP8 itself ≥ 80 % of its byte limit, batch 8", f"{share:.0%}", share >= 0.8)
    found = {batch: steps["fp8", batch]["us"] / steps["nvfp4", batch]["us"] for kind, batch in steps if kind == "fp8"}
    if {16, 32, 128} <= found.keys():
        said = ", ".join(f"{found[batch]:.2f} at {batch}" for batch in (16, 32, 128))
        add("NVFP4 never loses to FP8 at 16 to 128 rows, whole step", said, min(found[n] for n in (16, 32, 128)) >= 1)
        if all("products_us" in steps[kind, 32] for kind in ("nvfp4", "fp8")):
            alone = steps["fp8", 32]["products_us"] / steps["nvfp4", 32]["products_us"]
            said = f"{alone:.2f} (whole step {found[32]:.2f})"
            add("products at 32 rows: NVFP4 ≥ 1.3 x our FP8", said, alone >= 1.3)
    sizes = {kind: row["weights_bytes"] for (kind, _), row in steps.items()}
    if set(KINDS) <= sizes.keys():
        times, less = sizes["bf16"] / sizes["nvfp4"], 1 - sizes["nvfp4"] / sizes["fp8"]
        said = f"{times:.2f} x, {less:.1%}, the embedding in FP8 included"
        add("weights ≥ 3.2 x under BF16 and 37.5 % under FP8, from the allocator", said, times >= 3.2 and less >= 0.375)
    cases = ((read(results, "engine-nvfp4") or {}).get("client") or {}).get("cases", [])
    for case in cases:
        if case["prompt"] >= 32768:
            share = weight_flops(1) * case["prompt"] / (case["ttft_ms"] / 1e3) / matmul
            add("prefill ≥ 50 % of the bf16 product rate, a prompt of 32K whole", f"{share:.0%}", share >= 0.5)
    long = [row for row in section_rows(results, "Attention") if row[:2] == ["8", "32768"]]
    for name, rows in (("in FP8", [r for r in long if r[3] == "0"]), ("staged", [r for r in long if r[3] != "0"])):
        if rows:
            best = max(int(row[-1].rstrip("%")) for row in rows)
            add(f"paged attention at 32K ≥ 75 % of its bytes, {name}", f"{best} %", best >= 75)
    delta = [row for row in section_rows(results, "delta") if row[:2] == ["8", "1"]]
    if delta:
        share_ = int(delta[0][-1].rstrip("%"))
        add(
            "decode step of Gated DeltaNet ≥ 85 % at batch 8",
            f"{share_} %, with all between its products",
            share_ >= 85,
        )
    alone = ((read(results, "engine-invariant") or {}).get("client") or {}).get("alone")
    if alone is not None:
        said = f"{alone['same']} of {alone['of']} texts"
        add("batch-invariant mode: the same text alone and in company", said, alone["same"] == alone["of"])
    return lines


def engine_rows(results: Path, copy: float) -> list[str]:
    lines = [
        "| weights | at once | prompt | tokens | end to end tok/s while decoding | bare step tok/s | of bare | "
        "byte limit tok/s | with prefill tok/s | TTFT ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (*KINDS, "invariant"):
        found = read(results, f"engine-{name}")
        if found is None or not found.get("client"):
            continue
        label = "nvfp4, batch-invariant" if name == "invariant" else name
        for case in found["client"]["cases"]:
            batch = case["concurrency"]
            bare, limit, share = "–", "–", "–"
            decode = f"{case['decode_tokens_per_s']:.0f}" if case["tokens"] > 1 else "–"
            if case["tokens"] > 1 and str(min(batch, MOST_ROWS)) in found["bare_us"]:
                groups = -(-batch // MOST_ROWS)
                us = found["bare_us"][str(min(batch, MOST_ROWS))] * groups
                bare = f"{batch * 1e6 / us:.0f}"
                share = f"{case['decode_tokens_per_s'] / (batch * 1e6 / us):.0%}"
                limit = f"{batch / (step_bytes(found['kind'], batch, 640) / copy):.0f}"
            whole = f"{case['tokens_per_s']:.0f}" if case["tokens"] > 1 else "–"
            lines.append(
                f"| {label} | {batch} | {case['prompt']} | {case['tokens']} | {decode} | {bare} | {share} | {limit} | "
                f"{whole} | {case['ttft_ms']:.0f} |"
            )
    return lines


def step_rows(results: Path, copy: float) -> list[str]:
    found = read(results, "steps") or []
    fp8 = {row["batch"]: row["us"] for row in found if row["kind"] == "fp8"}
    lines = [
        "| batch | weights | ms a step | tok/s | byte limit ms | of it | products ms | rest ms | against FP8 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: (row["batch"], KINDS.index(row["kind"]))):
        limit = step_bytes(row["kind"], row["batch"], 640) / copy * 1e6
        against = f"{fp8[row['batch']] / row['us']:.2f}" if row["batch"] in fp8 and row["kind"] != "fp8" else ""
        lines.append(
            f"| {row['batch']} | {row['kind']} | {row['us'] / 1e3:.2f} | {row['batch'] * 1e6 / row['us']:.0f} | "
            f"{limit / 1e3:.2f} | {limit / row['us']:.0%} | {row.get('products_us', 0) / 1e3:.2f} | "
            f"{row.get('small_us', 0) / 1e3:.2f} | {against} |"
        )
    names = {"row": "by row", "one": "one multiplier a matrix"}
    for row in read(results, "library") or []:
        lines.append(
            f"| {row['batch']} | fp8, torch's library, {names[row['scales']]} | {row['us'] / 1e3:.2f} | "
            f"{row['batch'] * 1e6 / row['us']:.0f} | | | | | |"
        )
    return lines


def memory_rows(results: Path) -> list[str]:
    lines = ["| weights | GB from the allocator, embedding in FP8 beside narrow weights | of BF16 |", "|---|---|---|"]
    found = {row["kind"]: row["weights_bytes"] for row in read(results, "steps") or []}
    whole = found.get("bf16", weight_bytes("bf16") + EMBEDDING)
    for kind, bytes_ in sorted(found.items(), key=lambda item: item[1]):
        lines.append(f"| {kind} | {bytes_ / 1e9:.2f} | {whole / bytes_:.2f} times smaller |")
    return lines


def parity_rows(results: Path) -> list[str]:
    lines = [
        "| recipe | against | prefill: relative error | decode: relative error | same greedy token | ways |",
        "|---|---|---|---|---|---|",
    ]
    for row in (read(results, "parity") or {"rows": []})["rows"]:
        ways = ", ".join(row["ways"]) or "plain PyTorch"
        lines.append(
            f"| {row['recipe']} | {row['against']} | {row['prefill']:.1e} | {row['decode']:.1e} | "
            f"{row['greedy_equal']} of {row['of']} | {ways} |"
        )
    return lines


def gate_rows(results: Path) -> list[str]:
    lines = []
    for key, gates in (read(results, "gates") or {}).items():
        lines.append(f"{key}:")
        lines.append("")
        for name, result in gates.items():
            lines.append(f"- {'passed' if result['passed'] else '**failed**'} `{name}`: {result['said']}")
    return lines


def staged_line(found: dict[str, Any]) -> str:
    """What was filled, at which mix of page ages."""
    fp8, stale, contexts = found["held"]["fp8_pages"], found["held"]["three_bit_pages"], found["contexts"]
    room = "within" if found["fits_envelope"] else "**beyond**"
    return (
        f"{contexts} contexts of {found['tokens']} tokens at once, {fp8 / contexts:.1f} pages of each in FP8 and "
        f"{stale / contexts:.1f} in three bits, {room} {found['envelope'] / 2**30:.1f} GiB for weights, states, pages "
        f"(an FP8 cache beside the same weights: {found['fp8_cache_contexts']}); a step of all of them takes "
        f"{found['step_ms']:.1f} ms."
    )


def render(results: Path, failed: list[str]) -> str:
    ceilings = read(results, "ceilings") or read(results, "sections")
    if ceilings is None:
        return "# The engine on one GPU\n\nNothing was measured.\n"
    copy, matmul = ceilings["copy"], ceilings["matmul"]
    pages = ["# The engine on one GPU", ""]
    pages += [
        f"{ceilings['date']}, {ceilings['device']}, torch {ceilings['torch']}. Random weights at the real shapes of "
        f"the 27B model ({LAYERS} layers, {len(PRODUCTS)} kinds of products), made by `make bench-gpu`.",
        f"**Ceilings of the same run: copy {copy / 1e12:.2f} TB/s, bf16 product {matmul / 1e12:.0f} TFLOP/s.**",
        "",
    ]
    pages += [
        "FP8 is our own kernel in the same structure: weights in FP8, activations in float16. Rates while decoding "
        "count from the last first token on; where prompts take several steps (32 and 128 at once), what the earlier "
        "ones say meanwhile flatters them. `kernels-h200.md` has single products and what limits them.",
        "",
    ]
    if failed:
        pages += [f"**Parts that failed: {', '.join(failed)}.**", ""]
    sections: list[tuple[str, list[str]]] = [
        ("Bars", bar_rows(results, copy, matmul)),
        ("Engine end to end, over gRPC, client in another process", engine_rows(results, copy)),
        ("Decode step alone, context 640", step_rows(results, copy)),
        ("Weight memory", memory_rows(results)),
        ("One layer of each kind at full widths", parity_rows(results)),
        ("Gates", gate_rows(results)),
    ]
    peer = read(results, "peer")
    if peer is not None:
        line = (
            f"`transformers` eager in bf16, batch {peer['batch']}: {peer['four_ms']:.1f} ms for 4 layers, "
            f"{peer['eight_ms']:.1f} ms for 8 with the head; 64 layers by extrapolation {peer['whole_ms']:.0f} ms = "
            f"{peer['tokens_per_s']:.0f} tok/s."
        )
        sections.insert(3, ("Naive peer", [line]))
    alone = (read(results, "engine-invariant") or {}).get("client", {}).get("alone")
    if alone is not None:
        line = (
            f"In the batch-invariant mode {alone['same']} of {alone['of']} prompts gave the same {alone['tokens']} "
            "tokens alone as together."
        )
        sections.insert(3, ("The same text alone and in company", [line]))
    staged = read(results, "staged")
    if staged is not None:
        sections.append(("A staged KV cache, filled", [staged_line(staged)]))
    kernels = (read(results, "sections") or {}).get("sections", {})
    splits = read(results, "splits") or {}
    tuned = sorted({" ".join(name.split()[::3]) for found in splits.values() for name in found})
    if tuned:
        named = ", ".join(f"{name.split()[0]} at batch {name.split()[1]}" for name in tuned)
        sections.append(("Splits", [f"Chosen by time in this run: {named}. Others have the fewest parts."]))
    sections += [(title, lines) for title, lines in kernels.items()]
    sections.append(("Computed, not measured: limits elsewhere", calculated()))
    for title, lines in sections:
        pages += [f"## {title}", "", *lines, ""]
    return "\n".join(pages)
