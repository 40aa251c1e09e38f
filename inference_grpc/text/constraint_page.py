"""Writes the table of JSON Schema keywords into docs/engine/structured-output.md, out of the table that the code uses.

python -m inference_grpc.text.constraint_page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inference_grpc.text.constraint_schema import ANNOTATIONS, ENFORCED

PAGE = Path(__file__).parents[2] / "docs/engine/structured-output.md"
BEGIN = "<!-- keywords: made by python -m inference_grpc.text.constraint_page -->"
END = "<!-- /keywords -->"


def keyword_section() -> str:
    return "\n".join([BEGIN, *_table(), END])


def with_keyword_section(page: str) -> str:
    """`page` with the section between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + keyword_section() + after


def _table() -> Iterator[str]:
    yield "| keyword | about | note |"
    yield "| --- | --- | --- |"
    for name, keyword in ENFORCED.items():
        yield f"| `{name}` | {keyword.group} | {keyword.note} |"
    yield ""
    yield (
        "Accepted, since they describe and decide nothing: "
        + ", ".join(f"`{name}`" for name in ANNOTATIONS)
        + ", `x-…`."
    )


if __name__ == "__main__":
    PAGE.write_text(with_keyword_section(PAGE.read_text()))
