"""Where a local run lives: `VAR_DIR` holds its state, `PORT` its portal."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent.parent
DEFAULT_PORT = 8000


class OddPort(ValueError):
    """PORT is not a port number."""


def var_dir() -> Path:
    return Path(os.environ.get("VAR_DIR") or BASE_DIR / "var").resolve()


def port() -> int:
    text = os.environ.get("PORT") or str(DEFAULT_PORT)
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise OddPort(f"PORT={text!r} is not a port; use a number from 1 to 65535.")
    return int(text)
