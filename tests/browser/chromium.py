"""How the journeys and the screenshots start Chromium: the distribution's own, without anything that calls home."""

from __future__ import annotations

import shutil
from typing import Any

# As root Chromium has no sandbox to offer.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def launch_options() -> dict[str, Any]:
    installed = shutil.which("chromium")
    return {"args": FLAGS} | ({"executable_path": installed} if installed else {})
