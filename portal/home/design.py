"""What the page of the design shows, read from the files themselves: tokens and icons cannot be forgotten there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from django.conf import settings

_TOKEN = re.compile(r"^\s+--([\w-]+):\s*([^;]+);", re.MULTILINE)
_SYMBOL = re.compile(r'<symbol id="([\w-]+)"')


def _static(path: str) -> str:
    return (Path(settings.BASE_DIR) / "static" / path).read_text()


@cache
def tokens() -> dict[str, list[str]]:
    """Names by what they are: colours, text sizes and spaces, each in the file's order."""
    found: dict[str, list[str]] = {"colours": [], "texts": [], "spaces": []}
    for name, value in _TOKEN.findall(_static("css/tokens.css")):
        if value.startswith(("light-dark(#", "#")):
            found["colours"].append(name)
        elif name.startswith("text-"):
            found["texts"].append(name)
        elif name.startswith("space-"):
            found["spaces"].append(name)
    return found


@cache
def icons() -> list[str]:
    return _SYMBOL.findall(_static("img/icons.svg"))
