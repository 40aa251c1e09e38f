"""Exactness gates: `python -m kernels.gates` proves each fast way equal to its plain form on this machine's GPU.

Equal bits where the arithmetic is the same (alone and in company, with and without overlap, captured and not), else a
stated bound against float64. Results are kept in a file whose key is the chip, torch, triton and the sources in
here; an engine that finds no passed gate under its own key leaves that way off.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kernels.gate_checks import CHECKS


@dataclass(frozen=True)
class Gates:
    """Passed gates of one key."""

    key: str
    passed: frozenset[str]
    path: Path

    def __contains__(self, name: str) -> bool:
        return name in self.passed


def default_path() -> Path:
    folder = Path(os.environ.get("KERNELS_CACHE_DIR") or Path.home() / ".cache" / "tokenfactory-kernels")
    return folder / "gates.json"


@functools.cache
def sources_hash() -> str:
    """Of every source that may change a result."""
    folder = Path(__file__).parent
    found = (path for end in ("*.py", "*.cu", "*.cuh") for path in folder.rglob(end))
    files = sorted(path for path in found if "benchmarks" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(device_name: str, chip: tuple[int, int]) -> str:
    versions = []
    for name in ("torch", "triton"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{device_name} (sm_{chip[0]}{chip[1]}), {', '.join(versions)}, kernels {sources_hash()}"


def read_gates(key: str, path: Path | None = None) -> Gates:
    """No file, a damaged file or another key: nothing has passed."""
    path = path or default_path()
    try:
        found = json.loads(path.read_text()).get(key, {})
        passed = frozenset(name for name, result in found.items() if result["passed"] is True)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        passed = frozenset()
    return Gates(key, passed, path)


def record(key: str, results: Mapping[str, object], path: Path) -> None:
    """Put the results under the key; those of other keys stay. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            content = {}
        if not isinstance(content, dict):
            content = {}
        content[key] = {**content.get(key, {}), **results}
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        scratch.replace(path)


def run_check(check: Callable[[], str]) -> dict[str, Any]:
    """What a check says it proved, or how it failed. A check that cannot run has not passed."""
    began = time.monotonic()
    try:
        said, passed = check(), True
    except Exception as error:  # a gate must name any failure and let the others run
        said, passed = f"{type(error).__name__}: {error}"[:2000], False
    return {"passed": passed, "said": said, "seconds": round(time.monotonic() - began, 2)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gates", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"gates to run; without any: {', '.join(CHECKS)}")
    parser.add_argument("--file", type=Path, default=default_path(), help="where the results are kept")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - CHECKS.keys()
    if unknown:
        parser.error(f"there is no gate {min(unknown)!r}; there is {', '.join(CHECKS)}")
    import torch

    if not torch.cuda.is_available():
        parser.error("no NVIDIA GPU is visible to torch; gates are proved on the chip that will serve")
    key = key_of(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    sys.stdout.write(f"{key}\n")
    failed = 0
    for name in options.names or CHECKS:
        torch.manual_seed(7)
        result = run_check(CHECKS[name])
        record(key, {name: result}, options.file)
        failed += not result["passed"]
        sys.stdout.write(
            f"{'passed' if result['passed'] else 'FAILED'} {name} ({result['seconds']} s): {result['said']}\n"
        )
        sys.stdout.flush()
        torch.cuda.empty_cache()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
