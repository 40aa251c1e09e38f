"""What the page of the design shows, read from the files themselves: tokens and icons cannot be forgotten there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from django.conf import settings

_TOKEN = re.compile(r"^\s+--([\w-]+):", re.MULTILINE)
_SYMBOL = re.compile(r'<symbol id="([\w-]+)"')


def _source(path: str) -> str:
    return (Path(settings.BASE_DIR) / path).read_text()


@cache
def tokens() -> dict[str, list[str]]:
    """Names by what they are, each in the file's order: colours as utilities say them, text sizes and spaces."""
    found: dict[str, list[str]] = {"colours": [], "texts": [], "spaces": []}
    for name in _TOKEN.findall(_source("config/assets/css/tokens.css")):
        if name.startswith("color-"):
            found["colours"].append(name.removeprefix("color-"))
        elif name.startswith("text-"):
            found["texts"].append(name)
        elif name.startswith("spacing-"):
            found["spaces"].append(name)
    return found


@cache
def icons() -> list[str]:
    return _SYMBOL.findall(_source("static/img/icons.svg"))
