"""The page of what equals what names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kernels" / "parity.md"
NAMED = re.compile(r"`(?:[\w/]+/)?(test_\w+\.py)::(test_\w+)`")


def test_the_page_names_tests_that_are_there() -> None:
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] = sources.get(path.name, "") + path.read_text()
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 25
    for file, test in named:
        assert file in sources, file
        assert re.search(rf"def {test}\b", sources[file]), f"{file}::{test}"
